//! A request for a built-in type, carried out by its command.

use fairlead_cni::CniError;
use fairlead_cni::wire::Command;

use super::Core;
use crate::conf_dir::Networks;
use crate::engine::attachment_request::AttachmentRequest;
use crate::engine::kinds;
use crate::engine::parsed_request::ParsedRequest;

impl Core {
    /// Carries a request for a built-in type out. `networks` are looked through anew at a STATUS.
    pub(crate) fn carry_out(
        &self,
        request: &mut AttachmentRequest<'_>,
        parsed: &ParsedRequest,
        networks: Option<&Networks>,
    ) -> Result<String, CniError> {
        if !kinds::BUILT_IN.contains(&request.key.plugin.as_str()) {
            return Err(kinds::not_built_in(&request.key.plugin));
        }
        match request.command {
            Command::Add => return self.add(request, parsed.network()?).map_err(|e| e.into_error()),
            // A configuration that is invalid by now must not keep the pod: the record is enough for a DEL.
            Command::Del => self.del(request, &[parsed.network().ok()])?,
            Command::Check => {
                request.conf.version.must_have(Command::Check)?;
                self.check(request, parsed.network()?)?;
            }
            Command::Gc => self.gc(request)?,
            Command::Status => {
                request.conf.version.must_have(Command::Status)?;
                // R4: a configuration that came a moment ago counts for the next STATUS.
                networks.into_iter().for_each(Networks::rescan);
                self.status(request, parsed.network()?)?;
            }
        }
        Ok(String::new())
    }
}
