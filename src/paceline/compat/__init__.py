"""The interfaces of other libraries, on paceline's stores."""
