"""Programs behind the claims of speed, memory and accuracy, and campaigns against istmpi; see README.md."""
