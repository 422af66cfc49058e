"""What people look at: tables and plots of plans and runs."""
