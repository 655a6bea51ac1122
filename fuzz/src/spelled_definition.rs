//! Definitions of networks in every spelling that JSON and Go's reading of it allow, made of a few bytes.
//!
//! What a policy forbids is called so in here: names with `evil` in them, VLAN 666, addresses of 10.66.0.0/16. The rest is `good`,
//! VLAN 100 to 199, 10.9.0.0/16. The keys are in any case, with `ſ` for s, the Kelvin sign for k and escapes; they stand there
//! several times with different values; objects are split, lists are nested, numbers are texts, texts end in NUL.

/// Bytes that choices are made by; with none left each choice is the first.
struct Choices<'a>(&'a [u8]);

/// What a definition may hold under a key.
#[derive(Clone, Copy)]
enum Content {
    /// One of these, as JSON: first what is allowed, then what is forbidden.
    Value(&'static [&'static str], &'static [&'static str]),
    /// An object with these keys.
    Object(&'static [(&'static str, Content)]),
    /// The same, seldom.
    Seldom(&'static [(&'static str, Content)]),
}
use Content::{Object, Seldom, Value};

/// One definition.
pub(crate) fn write(data: &[u8]) -> String {
    let mut choices = Choices(data);
    let mut out = String::new();
    match choices.below(4) {
        0 => choices.object(WHOLE, &mut out),
        1 => {
            out.push_str(r#"{"cniVersion":"1.0.0","name":"net","plugins":["#);
            choices.several(&[PLUGIN], &mut out);
            out.push_str("]}");
        }
        2 => {
            out.push_str(r#"{"cniVersion":"1.0.0","name":"net","type":"fairlead","paths":["#);
            choices.several(PATHS, &mut out);
            out.push(']');
            if choices.below(2) == 1 {
                out.push_str(r#","ipam":"#);
                choices.object(IPAM, &mut out);
            }
            out.push('}');
        }
        _ => choices.object(OWN, &mut out),
    }
    out
}

const WORDS: &[&str] = &["\"good0\"", "\"good1\""];
const EVIL: &[&str] = &[
    "null",
    "\"evil0\"",
    "\"evil1\"",
    "\"good0\\u0000evil\"",
    "\"evil0\\u0000good\"",
    "\"Evil\"",
    "7",
    "[\"evil0\"]",
];
const TYPES: &[&str] = &[
    "\"macvlan\"",
    "\"vlan\"",
    "\"macvlan\"",
    "\"ipvlan\"",
    "\"sriov\"",
    "\"host-device\"",
    "\"dummy\"",
    "\"goodtool\"",
];
const EVIL_TYPES: &[&str] =
    &["\"eviltool\"", "\"fairlead\"", "\"loopback\"", "\"Macvlan\"", "\"macvlan\\u0000evil\"", "null"];
const VLANS: &[&str] = &["100", "199", "150"];
const EVIL_VLANS: &[&str] = &[
    "\"100\"",
    "1e2",
    "100.0",
    "666",
    "\"666\"",
    "6.66e2",
    "666.0",
    "0",
    "-0",
    "-3430",
    "4294967962",
    "null",
];

const IPAM: &[(&str, Content)] = &[
    (
        "type",
        Value(
            &["\"host-local\"", "\"static\"", "\"goodipam\""],
            &["\"evilipam\"", "\"Static\"", "null", "\"\""],
        ),
    ),
    (
        "subnet",
        Value(
            &["\"10.9.1.0/24\"", "\"10.9.2.0/24\""],
            &["\"10.66.0.0/24\"", "\"10.0.0.0/8\"", "\"::ffff:10.66.0.0/120\"", "null"],
        ),
    ),
    (
        "ranges",
        Value(
            &["[[{\"subnet\":\"10.9.3.0/24\"}]]", "null"],
            &[
                "[[{\"Subnet\":\"10.66.0.0/24\"}]]",
                "[[{\"subnet\":\"10.9.4.0/24\",\"\u{17f}ubnet\":\"10.66.0.0/24\"}]]",
            ],
        ),
    ),
    (
        "addresses",
        Value(
            &["[{\"address\":\"10.9.0.9/24\"}]", "[]"],
            &["[{\"address\":\"10.66.0.9/24\"}]", "[{\"addre\u{17f}\u{17f}\":\"10.66.0.9/24\"}]"],
        ),
    ),
    (
        "dataDir",
        Value(
            &["\"/var/lib/cni/networks\"", "\"/var/lib/cni/networks/\"", "null"],
            &[
                "\"/evil\"",
                "\"/var/lib/cni/networks/../evil\"",
                "\"/var/lib/cni/networksevil\"",
                "\"/var/lib/cni/networks/evil@other\"",
                "\"\\u002fevil\"",
                "\"evil\"",
            ],
        ),
    ),
    ("resolvConf", Value(&["null", "\"\""], &["\"/evil\"", "\"evil\""])),
];

const RUNTIME: &[(&str, Content)] = &[
    ("CNIDeviceInfoFile", Value(&["null"], &["\"/evil\""])),
    ("deviceID", Value(&["null"], &["\"0000:66:06.6\""])),
    ("mac", Value(&["null"], &["\"02:66:66:66:66:66\""])),
    ("ips", Value(&["[]"], &["[\"10.66.0.9/24\"]"])),
    ("ipRanges", Value(&["[]"], &["[[{\"subnet\":\"10.66.0.0/24\"}]]"])),
];

const ARGS: &[(&str, Content)] =
    &[("cni", Object(&[("ips", Value(&["[]", "[\"10.9.1.9/24\"]"], &["[\"10.66.0.9/24\"]"]))]))];

const PLUGIN: &[(&str, Content)] = &[
    ("type", Value(TYPES, EVIL_TYPES)),
    ("master", Value(WORDS, EVIL)),
    ("mode", Value(&["\"\"", "null"], &["\"passthru\"", "\"Passthru\""])),
    ("linkInContainer", Value(&["false", "null"], &["true", "\"true\""])),
    ("bcqueuelen", Value(&["1000", "0"], &["66666", "4294967295"])),
    ("vlanId", Value(VLANS, EVIL_VLANS)),
    ("vlan", Value(VLANS, EVIL_VLANS)),
    ("device", Value(WORDS, EVIL)),
    ("hwaddr", Value(&["null", "\"\""], &["\"02:66:66:66:66:66\""])),
    ("kernelpath", Value(&["null", "\"\""], &["\"/sys/devices/../../evil\""])),
    ("pool", Value(WORDS, EVIL)),
    ("deviceID", Value(&["null", "\"\""], &["\"0000:66:06.6\""])),
    ("trust", Value(&["\"off\"", "null"], &["\"on\"", "true"])),
    ("spoofchk", Value(&["\"on\"", "null"], &["\"off\"", "false"])),
    ("max_tx_rate", Value(&["null"], &["66", "0"])),
    ("deviceAccess", Value(&["null"], &["\"host\""])),
    (
        "logFile",
        Value(
            &["null", "\"\"", "\"relative/file\"", "\"http://good/x\"", "\"fd00::/64\""],
            &[
                "\"/evil\"",
                "\"x/../evil\"",
                "\"file:/evil\"",
                "\"--x=/evil\"",
                "\"--x=../evil\"",
                "\"x:../evil,y\"",
                "\"-x../evil\"",
                "\"x:/evil\"",
                "\"http:///evil\"",
                "\"[\\u002fevil]\"",
            ],
        ),
    ),
    ("ipam", Object(IPAM)),
    ("args", Object(ARGS)),
    (
        "capabilities",
        Object(&[("ips", Value(&["true"], &["false"])), ("deviceID", Value(&["true"], &["false"]))]),
    ),
];

const WHOLE: &[(&str, Content)] = &[
    ("cniVersion", Value(&["\"1.0.0\"", "\"0.4.0\""], &["null", "\"6.6.6\""])),
    ("name", Value(&["\"net\""], &["\"evil\"", "\"../evil\"", "null"])),
    ("type", Value(TYPES, EVIL_TYPES)),
    ("master", Value(WORDS, EVIL)),
    ("mode", Value(&["\"\"", "null"], &["\"passthru\""])),
    ("vlanId", Value(VLANS, EVIL_VLANS)),
    ("vlan", Value(VLANS, EVIL_VLANS)),
    ("device", Value(WORDS, EVIL)),
    ("pool", Value(WORDS, EVIL)),
    ("trust", Value(&["\"off\"", "null"], &["\"on\""])),
    ("ipam", Object(IPAM)),
    ("runtimeConfig", Seldom(RUNTIME)),
    (
        "plugins",
        Value(&["null"], &["[{\"type\":\"eviltool\"}]", "[{\"type\":\"macvlan\",\"master\":\"evil0\"}]"]),
    ),
];

const PATHS: &[&[(&str, Content)]] = &[
    &[
        ("type", Value(&["\"macvlan\"", "\"ipvlan\""], EVIL_TYPES)),
        ("master", Value(WORDS, EVIL)),
        ("linkInContainer", Value(&["false"], &["true"])),
    ],
    &[
        ("type", Value(&["\"vlan\""], EVIL_TYPES)),
        ("master", Value(WORDS, EVIL)),
        ("vlanId", Value(VLANS, EVIL_VLANS)),
    ],
    &[
        ("type", Value(&["\"sriov\""], EVIL_TYPES)),
        ("pool", Value(WORDS, EVIL)),
        ("vlan", Value(VLANS, EVIL_VLANS)),
        ("trust", Value(&["\"off\""], &["\"on\""])),
        ("deviceAccess", Value(&["null"], &["\"host\""])),
    ],
    &[("type", Value(&["\"host-device\""], EVIL_TYPES)), ("device", Value(WORDS, EVIL))],
];

const OWN: &[(&str, Content)] = &[
    ("cniVersion", Value(&["\"1.1.0\""], &["null"])),
    ("name", Value(&["\"net\""], &["\"evil\""])),
    ("type", Value(&["\"fairlead\""], EVIL_TYPES)),
    ("clusterNetwork", Value(&["null"], &["\"evil\""])),
    (
        "paths",
        Value(
            &[
                "[{\"type\":\"macvlan\",\"master\":\"good0\"}]",
                "[{\"type\":\"sriov\",\"pool\":\"good\"},{\"type\":\"dummy\"}]",
            ],
            &[
                "[{\"type\":\"macvlan\",\"master\":\"good0\",\"master\":\"evil0\"}]",
                "[{\"type\":\"macvlan\"}]",
                "[{\"type\":\"sriov\"}]",
            ],
        ),
    ),
    ("deviceID", Value(&["null"], &["\"0000:66:06.6\""])),
    ("ipam", Object(IPAM)),
    ("runtimeConfig", Seldom(RUNTIME)),
];

impl Choices<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn below(&mut self, most: usize) -> usize {
        usize::from(self.byte()) % most
    }

    fn one_of<'t>(&mut self, of: &[&'t str]) -> &'t str {
        let at = self.below(of.len().max(1));
        of.get(at).copied().unwrap_or("null")
    }

    fn space(&mut self, out: &mut String) {
        if self.below(8) == 7 {
            out.push_str(self.one_of(&[" ", "\t", "\n", "\r\n "]));
        }
    }

    /// A key, spelled somehow.
    fn key(&mut self, key: &str, out: &mut String) {
        out.push('"');
        // Most are as they should be, or too few definitions would be taken at all.
        let odd = self.below(4) == 3;
        for c in key.chars() {
            match if odd { self.below(6) } else { 0 } {
                1 => out.push(c.to_ascii_uppercase()),
                2 => out.push(c.to_ascii_lowercase()),
                3 => out.push_str(&format!("\\u{:04x}", u32::from(c))),
                4 if c == 's' => out.push('\u{17f}'),
                4 if c == 'k' => out.push('\u{212a}'),
                5 if c == 's' => out.push_str("\\u017F"),
                5 if c == 'k' => out.push_str("\\u212A"),
                _ => out.push(c),
            }
        }
        out.push('"');
    }

    fn object(&mut self, keys: &[(&str, Content)], out: &mut String) {
        out.push('{');
        let mut first = true;
        for (key, content) in keys {
            // Once, not at all, or again with another value.
            let times = match content {
                Seldom(_) => usize::from(self.byte() >= 240),
                _ if matches!(*key, "type" | "name" | "cniVersion") => {
                    [1, 1, 1, 1, 1, 1, 2, 2][self.below(8)]
                }
                _ => [1, 1, 1, 1, 1, 0, 0, 2][self.below(8)],
            };
            for _ in 0..times {
                if !first {
                    out.push(',');
                }
                first = false;
                self.space(out);
                self.key(key, out);
                out.push(':');
                self.space(out);
                self.content(*content, out);
            }
        }
        out.push('}');
    }

    fn content(&mut self, content: Content, out: &mut String) {
        match content {
            Value(allowed, forbidden) => {
                let from = if self.byte() >= 240 { forbidden } else { allowed };
                out.push_str(self.one_of(from));
            }
            Object(keys) | Seldom(keys) => match self.below(16) {
                15 => out.push_str("null"),
                _ => self.object(keys, out),
            },
        }
    }

    fn several(&mut self, of: &[&[(&str, Content)]], out: &mut String) {
        for at in 0..=self.below(3) {
            if at > 0 {
                out.push(',');
            }
            let at = self.below(of.len().max(1));
            self.object(of.get(at).copied().unwrap_or_default(), out);
        }
    }
}
