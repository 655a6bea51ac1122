//! The `resolvConf` file of host-local, as the reference plugin reads it (`parseResolvConf`).

use crate::result::Dns;

/// Reads the text of a resolv.conf: the last `domain` counts, all others add up, what is not understood is skipped.
pub fn parse(text: &str) -> Dns {
    let mut dns = Dns::default();
    for line in text.lines() {
        let mut words = line.split_whitespace().map(str::to_owned);
        // Comments begin with '#' or ';' and so match no keyword.
        let Some(keyword) = words.next() else { continue };
        let mut words = words.peekable();
        if words.peek().is_none() {
            continue;
        }
        match keyword.as_str() {
            "nameserver" => dns.nameservers.extend(words.next()),
            "domain" => dns.domain = words.next().unwrap_or_default(),
            "search" => dns.search.extend(words),
            "options" => dns.options.extend(words),
            _ => {}
        }
    }
    dns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resolv_conf_is_read_as_the_reference_plugin_reads_it() {
        let text = "# comment\n; another\n\n nameserver 192.0.2.0 extra\nnameserver 192.0.2.1\ndomain a.com\ndomain b.com\n\
                    search  example.com example.net\nsearch x\noptions debug rotate\nnameserver\nbogus y\n";
        let dns = parse(text);
        assert_eq!(dns.nameservers, ["192.0.2.0", "192.0.2.1"]);
        assert_eq!(dns.domain, "b.com");
        assert_eq!(dns.search, ["example.com", "example.net", "x"]);
        assert_eq!(dns.options, ["debug", "rotate"]);
    }
}
