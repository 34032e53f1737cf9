"""The served stack as containers: images, compose, Kubernetes, and what prepares their stores."""
