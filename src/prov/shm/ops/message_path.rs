// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reports which path messages take. Short messages go through the ring. The receiver fetches the bytes of longer
//! messages if it can reach them, and otherwise asks for them through the ring.

use crate::config;
use crate::error::{Code, Error, Result, errno};
use crate::hmem::Site;
use crate::mr::Paths;
use crate::prov::report::{PathReport, Refusals, Short};
use crate::prov::shm::domain::Domain;
use crate::prov::shm::state::State;

impl State {
    /// The path of messages from memory of the region that `desc` names; `desc` 0: from memory in no region.
    pub fn report_messages(&self, domain: &Domain, desc: u64) -> Result<PathReport> {
        let Some(conn) = self.conn.as_deref() else { return Err(self.not_connected()) };
        let (site, shared) = match desc {
            0 => (Site::HOST, false),
            _ => domain.regions.lock().message_memory(desc)?,
        };
        let no = |words| Some(Error::coded(errno::EOPNOTSUPP, Code::Path, words));
        let allowed = conn.remotes.allowed;
        let permit = |path: Paths| {
            (!allowed.contains(path)).then(|| Error::fixed(errno::EACCES, "ruled out by this endpoint's options or GDRFAB_PATHS"))
        };
        let mapped = |path: Paths| match shared {
            true => permit(path),
            false => no("the receiver maps only memory of gdrfab_mem_alloc() or device memory, in a region that desc names"),
        };
        let refusals = Refusals {
            direct: if site.is_host() { mapped(Paths::DIRECT) } else { no("the message is in device memory") },
            ipc: if site.is_host() { no("the message is in host memory") } else { mapped(Paths::IPC) },
            cma: match site.is_host() {
                true => permit(Paths::CMA).or_else(|| conn.link.why_no_cma().cloned()),
                false => no("the message is in device memory, which the kernel cannot copy"),
            },
            // The ring takes messages whatever paths are permitted.
            staged: None,
            ..Refusals::refused("not a path of shm, which reaches processes of this host")
        };
        let most = config::get().ring_max(site.is_host() && !shared);
        let short = Short { path: Paths::STAGED, most, how: "in the ring" };
        let how = "chosen by the receiver, whose options also count, when it posts the receive";
        Ok(PathReport::of_messages(&conn.link.place(), Some(short), how, refusals, ""))
    }
}
