//! `fairlead-vswitch`: the data plane of vhost-user ports.

fn main() {}
