//! The `static` IPAM: addresses that stand in the configuration or come with the call. It allocates nothing, so
//! there is nothing to give back.

use fairlead_cni::CniResult;
use fairlead_cni::config::StaticIpam;
use fairlead_cni::result::IpConfig;

use super::{IpamError, Lease};

/// What a configuration assigns. An address without a gateway has none.
pub fn allocate(config: &StaticIpam) -> Lease {
    let one = |a: &fairlead_cni::config::static_ipam::StaticAddress| IpConfig {
        address: a.address,
        gateway: a.gateway,
        interface: None,
    };
    Lease {
        ips: config.addresses.iter().map(one).collect(),
        routes: config.routes.clone(),
        dns: config.dns.clone(),
    }
}

/// CHECK, as the reference plugin does it: a configured address that is in the result has the configured gateway. An
/// address that is not in it is not asked for here; whether the interface has it is looked at by the network type.
pub fn check(config: &StaticIpam, prev: &CniResult, ifname: &str) -> Result<(), IpamError> {
    for configured in &config.addresses {
        let had = prev.ips.iter().find(|had| had.address.addr() == configured.address.addr());
        if let Some(had) = had
            && configured.gateway.is_some()
            && had.gateway != configured.gateway
        {
            return Err(IpamError::Mismatch { ip: had.address.addr(), ifname: ifname.to_owned() });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use fairlead_cni::args::Args;
    use fairlead_cni::config::NetConf;

    use super::*;

    fn config(args: &str, more: &str) -> StaticIpam {
        let text = format!(
            r#"{{"cniVersion":"1.0.0","name":"n","type":"macvlan","ipam":{{"type":"static","addresses":[{{"address":"10.1.0.2/24","gateway":"10.1.0.1"}},{{"address":"fd00::2/64"}}],"routes":[{{"dst":"0.0.0.0/0"}}],"dns":{{"nameservers":["10.1.0.53"]}}}}{more}}}"#
        );
        StaticIpam::parse(&NetConf::parse(&text).unwrap(), &Args::parse(args).unwrap()).unwrap()
    }

    fn addresses(lease: &Lease) -> Vec<String> {
        lease.ips.iter().map(|ip| format!("{} {:?}", ip.address, ip.gateway)).collect()
    }

    #[test]
    fn what_is_configured_is_assigned() {
        let lease = allocate(&config("", ""));
        assert_eq!(addresses(&lease), ["10.1.0.2/24 Some(10.1.0.1)", "fd00::2/64 None"]);
        assert_eq!((lease.routes.len(), lease.dns.nameservers.len()), (1, 1));
    }

    #[test]
    fn what_comes_with_the_call_is_added_or_replaces_it() {
        let added = allocate(&config("IP=10.2.0.2/24;GATEWAY=10.2.0.1", ""));
        assert_eq!(addresses(&added).last().unwrap(), "10.2.0.2/24 Some(10.2.0.1)");
        assert_eq!(added.ips.len(), 3);
        let replaced = allocate(&config("", r#","runtimeConfig":{"ips":["10.3.0.2/24"]}"#));
        assert_eq!(addresses(&replaced), ["10.3.0.2/24 None"]);
    }

    #[test]
    fn check_refuses_another_gateway_for_a_configured_address() {
        let config = config("", "");
        let mut prev = CniResult { ips: allocate(&config).ips, ..CniResult::default() };
        check(&config, &prev, "eth0").unwrap();
        prev.ips[0].gateway = None;
        let error = check(&config, &prev, "eth0").unwrap_err().to_string();
        assert_eq!(error, "static: Failed to match addr 10.1.0.2 on interface eth0");
        check(&config, &CniResult::default(), "eth0").unwrap();
    }
}
