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
            (!allowed.contains(path)).then(|| Error::fixed(errno::EACCES, "ruled out by this endpoint's options or GDRFAB_SHM_PATHS"))
        };
        let mapped = |path: Paths| match shared {
            true => permit(path),
            false => no("the receiver maps no memory but of gdrfab_mem_alloc(), or of a device, in a region that desc names"),
        };
        let refusals = Refusals {
            direct: if site.is_host() { mapped(Paths::DIRECT) } else { no("the message lies in a device's memory") },
            ipc: if site.is_host() { no("the message lies in host memory") } else { mapped(Paths::IPC) },
            cma: match site.is_host() {
                true => permit(Paths::CMA).or_else(|| conn.link.why_no_cma().cloned()),
                false => no("the message lies in a device's memory, which the kernel does not copy"),
            },
            // The ring takes messages whatever paths are permitted.
            staged: None,
            ..Refusals::refused("no path of shm: the peer is a process of this host")
        };
        let most = config::get().ring_max(site.is_host() && !shared);
        let short = Short { path: Paths::STAGED, most, how: "in the ring" };
        let how = "which the receiver chooses, by its own options too, once it has a receive";
        Ok(PathReport::of_messages(&conn.link.place(), Some(short), how, refusals, ""))
    }
}
