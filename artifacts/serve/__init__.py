"""What a serving process uses: a pulled release becomes a callable, after its checks."""
