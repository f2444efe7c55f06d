"""The interfaces of other libraries, on headgate's stores."""
