// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A driver that does not return delays the registration that called it, and nothing else. Uses the fake CUDA of `c-tests/fakes`, which
//! hangs in one function until it is released. `fakes` says how the cases run.

mod fakes;

use fakes::Case;
use gdrfab::fabric::{self, Domain, Fabric, Info};
use gdrfab::hmem::{self, Iface, Site};
use gdrfab::mr::{Access, PathPolicy, Paths};
use gdrfab::mr::{Attr, Memory, Source};
use gdrfab::prov::op::Iov;
use std::path::Path;
use std::time::{Duration, Instant};

const CASES: &[Case] = &[("shm", "", &[], shm), ("tcp", "", &[], tcp)];

/// The driver's functions that a registration calls, in this order.
const DETECT: &str = "cuPointerGetAttributes";
const EXPORT: &str = "cuMemExportToShareableHandle";

#[test]
fn driver_hangs() {
    fakes::each(CASES, &[]);
}

fn shm() {
    hangs("shm", DETECT, Paths::IPC | Paths::STAGED);
    hangs("shm", EXPORT, Paths::IPC | Paths::STAGED);
}

fn tcp() {
    hangs("tcp", DETECT, Paths::STAGED);
}

fn attr(iovs: &[Iov], memory: Memory) -> Attr<'_> {
    let policy = PathPolicy::default();
    Attr {
        source: Source::Iov(iovs),
        memory,
        access: Access::all() - Access::ATOMIC,
        offset: 0,
        requested_key: 0,
        policy,
        rma_event: false,
    }
}

/// Waits for `what` for five seconds at most.
fn wait(what: impl Fn() -> bool) -> bool {
    let until = Instant::now() + Duration::from_secs(5);
    while !what() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
    what()
}

fn hangs(provider: &str, function: &str, paths: Paths) {
    let hints = Info { prov_name: Some(provider.into()), mr_mode: 0x1ffc, ..Info::default() };
    let info = fabric::getinfo(None, None, 0, Some(&hints)).unwrap().remove(0);
    let domain = Domain::open(&Fabric::open(&info).unwrap(), &info, None).unwrap();
    let up = hmem::get(Iface::Cuda).unwrap();
    let at = up.alloc(0, 8192).unwrap() as usize;
    let file = std::env::temp_dir().join(format!("gdrfab-hang-{}", std::process::id()));
    // SAFETY: no other thread of this process runs.
    unsafe { std::env::set_var("FAKE_HANG", format!("{function}@{}", file.display())) };
    let (bytes, more) = ([0u8; 64], [0u8; 64]);
    // SAFETY: both buffers outlive their use.
    let host = [&bytes, &more].map(|b| unsafe { Iov::of(b) });
    let earlier = domain.register(&attr(&host, Memory::Host)).unwrap();
    std::fs::write(&file, "").unwrap();
    std::thread::scope(|threads| {
        let hanging = threads.spawn(|| {
            // SAFETY: memory of the fake driver, which no other code touches.
            let device = [unsafe { Iov::new(at, 4096) }];
            let mr = domain.register(&attr(&device, Memory::Device(Site { iface: Iface::Cuda, device: 0 }))).unwrap();
            let found = mr.facts().unwrap().paths;
            mr.close().unwrap();
            mr.put_back();
            found
        });
        // The driver has removed the file: it is inside the call, and stays there.
        let inside = wait(|| !file.exists());
        let others = threads.spawn(|| {
            let mr = domain.register(&attr(&host, Memory::Host)).unwrap();
            assert!(mr.explain().is_ok() && earlier.facts().is_ok());
            mr.close().unwrap();
            mr.put_back();
            domain.free(domain.allocate(4096).unwrap()).unwrap();
        });
        let went_on = wait(|| others.is_finished());
        let stayed = !hanging.is_finished();
        std::fs::write(&file, "").unwrap();
        assert_eq!(hanging.join().unwrap(), paths, "{provider}, {function}");
        others.join().unwrap();
        assert!(inside && stayed, "{provider}: {function} did not hang");
        assert!(went_on, "{provider}: all registrations waited for {function}");
    });
    earlier.close().unwrap();
    earlier.put_back();
    let _ = std::fs::remove_file(Path::new(&file));
}
