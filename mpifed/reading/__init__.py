"""Files that are read: one reader for each kind, which checks what it reads."""
