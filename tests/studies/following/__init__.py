"""Following under load: many versions take over, and many fail to, while threads call."""
