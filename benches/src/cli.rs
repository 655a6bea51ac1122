//! The command line: which subjects are measured, in which cases, on which file systems, and where it is written.
//!
//! Nothing is left out silently: a subject that is not there is an error with its remedy, or it is left out by
//! order (`--without`).

use std::path::PathBuf;
use std::str::FromStr;

use clap::Parser;

/// Times CNI plugins the way a runtime calls them: side by side, in real network namespaces, each result verified.
#[derive(Debug, Parser)]
#[command(name = "fairlead-bench", version)]
pub(crate) struct Options {
    /// What is measured; absent: single interfaces.
    #[arg(value_enum)]
    pub(crate) suite: Option<Suite>,
    /// For `pods`: the directory of etcd and kube-apiserver, which the suite starts on its private node.
    #[arg(long, value_name = "DIR", default_value = ".cache/k8s/now")]
    pub(crate) kubernetes: PathBuf,
    /// For `switches`: `usr` of Open vSwitch's packages with DPDK, unpacked.
    #[arg(long, value_name = "DIR", default_value = ".cache/ovs/usr")]
    pub(crate) open_vswitch: PathBuf,
    /// Directory with `fairlead` and `fairleadd`; the daemon is started from it.
    #[arg(long, value_name = "DIR", default_value = "dist")]
    pub(crate) ours: PathBuf,
    /// Directory of Debian's reference plugins.
    #[arg(long, value_name = "DIR", default_value = "/usr/lib/cni")]
    pub(crate) debian: PathBuf,
    /// Directory of other reference plugins, such as the newest built from the Go module proxy.
    #[arg(long, value_name = "DIR")]
    pub(crate) reference: Option<PathBuf>,
    /// Any other plugin by the path of its executable. Can be given several times. For `pods`: `multus=DIR`, the directory of
    /// `multus-daemon`, `multus-shim` and `multus`.
    #[arg(long = "peer", value_name = "NAME=PATH")]
    pub(crate) peers: Vec<Named>,
    /// The CNI config of a peer (`@DATA_DIR@` in it becomes the run's allocation directory); default: the suite's own.
    #[arg(long = "peer-config", value_name = "NAME=FILE")]
    pub(crate) peer_configs: Vec<Named>,
    /// A command line that serves a peer, run by `sh -c` inside the private node while the suite runs.
    #[arg(long = "peer-daemon", value_name = "NAME=COMMAND")]
    pub(crate) peer_daemons: Vec<Named>,
    /// The empty static executable of the floor.
    #[arg(long, value_name = "FILE", default_value = "dist/fairlead-empty")]
    pub(crate) empty: PathBuf,
    /// Leaves a subject out: `ours`, `debian`, `floor`; for `pods`: `ours`, `multus-thick`, `multus-thin`. Can be given several times.
    #[arg(long, value_name = "SUBJECT")]
    pub(crate) without: Vec<String>,
    /// Runs this case alone. Can be given several times.
    #[arg(long, value_name = "CASE")]
    pub(crate) only: Vec<String>,
    /// Lists the cases and ends.
    #[arg(long)]
    pub(crate) list: bool,
    /// Small numbers: shows that everything works, measures nothing.
    #[arg(long)]
    pub(crate) quick: bool,
    /// A VF (PCI address) with an interface that is at home: ours. Can be given several times, all of one NIC;
    /// the cases are then those of VFs, with this machine's own namespace in the place of a private node.
    #[arg(long = "function", value_name = "PCI", requires = "beside")]
    pub(crate) vfs: Vec<String>,
    /// A VF for the floor and the peers, of another NIC of the same kind. Can be given several times.
    #[arg(long = "function-beside", id = "beside", value_name = "PCI")]
    pub(crate) beside: Vec<String>,
    /// A VF of ours that vfio-pci is to have. Can be given several times.
    #[arg(long = "function-vfio", value_name = "PCI", requires = "vfs")]
    pub(crate) in_user_space: Vec<String>,
    /// Repeats every case so many times; the samples are put together.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) runs: u32,
    /// Also counts rounds in which the hypervisor or other processes had the processors. Without it they are measured anew, and not
    /// counted where they are disturbed again.
    #[arg(long)]
    pub(crate) keep_disturbed: bool,
    /// Writes everything measured, with the raw histograms, as JSON.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Writes a self-contained report with latency curves.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Where the allocation files and the daemon's state directory lie. Without it: in /var/lib, on a disk with a journal, which is made
    /// for the run where /var/lib has none.
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir_fs: Option<PathBuf>,
    /// Where the daemon's run directory lies. Without it: in /run, on a tmpfs, which is mounted for the run where /run is none.
    #[arg(long, value_name = "DIR")]
    pub(crate) run_dir_fs: Option<PathBuf>,
}

impl Options {
    /// Whether a subject was left out with `--without`.
    pub(crate) fn leaves_out(&self, subject: &str) -> bool {
        self.without.iter().any(|name| name == subject)
    }

    /// Whether disturbed rounds count. A smoke test measures nothing that could be wrong.
    pub(crate) fn keeps_disturbed(&self) -> bool {
        self.keep_disturbed || self.quick
    }
}

/// A suite beside that of single interfaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Suite {
    /// Whole pods with several networks, in a cluster.
    Pods,
    /// Switches of vhost-user ports.
    Switches,
}

/// A value with the name of the subject it belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Named {
    /// The name of the subject.
    pub(crate) name: String,
    /// The path or the command line that the option gives to it.
    pub(crate) value: String,
}

impl FromStr for Named {
    type Err = String;

    fn from_str(text: &str) -> Result<Named, String> {
        match text.split_once('=') {
            Some((name, value)) if !name.is_empty() && !value.is_empty() => {
                Ok(Named { name: name.to_owned(), value: value.to_owned() })
            }
            _ => Err(format!("{text:?} is not of the form NAME=VALUE")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_a_name_and_a_value_that_may_contain_an_equals_sign() {
        let named: Named = "multus=A=1 /opt/multus".parse().unwrap();
        assert_eq!((named.name.as_str(), named.value.as_str()), ("multus", "A=1 /opt/multus"));
        for text in ["", "multus", "=path", "multus="] {
            assert!(text.parse::<Named>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Options::command().debug_assert();
    }
}
