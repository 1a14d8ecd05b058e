// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pages before pinning: most of what registering fresh memory costs is the kernel clearing its pages, and that can
//! be done by several threads, while one registration cannot.

use crate::mr::Access;
use crate::prov::op::Iov;
use crate::sys::mem;

/// Bytes per thread that make a thread worth starting.
const SHARE: usize = 32 << 20;

/// Gives host ranges their pages, on up to `threads` threads. What cannot be populated is left to the registration.
pub fn populate(iovs: &[Iov], access: Access, threads: usize) {
    let write = access.intersects(Access::READ | Access::RECV | Access::REMOTE_WRITE);
    for iov in iovs {
        let parts = (iov.len / SHARE).min(threads);
        if parts < 2 {
            continue;
        }
        let page = mem::page_size();
        let start = iov.addr & !(page - 1);
        let end = (iov.addr + iov.len).div_ceil(page) * page;
        let share = ((end - start) / parts).next_multiple_of(2 << 20);
        std::thread::scope(|scope| {
            for at in (start..end).step_by(share) {
                let n = share.min(end - at);
                let spawned =
                    std::thread::Builder::new().name("gdrfab-populate".into()).spawn_scoped(scope, move || mem::populate(at, n, write));
                if spawned.is_err() {
                    break;
                }
            }
        });
    }
}
