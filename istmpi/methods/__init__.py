"""Every method of training, one file each; `istmpi.config.methods` describes them."""
