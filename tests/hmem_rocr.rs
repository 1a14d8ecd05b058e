// SPDX-License-Identifier: Apache-2.0 OR MIT
//! ROCm memory against the fake HSA runtime of `c-tests/fakes`; `fakes` says how the cases run.

mod fakes;

use fakes::{Case, again, fails, fault, fds, hex, load, pattern, refuse, refused, store, unhex};
use gdrfab::error::errno;
use gdrfab::hmem::{self, Dir, HANDLE_BYTES, Iface, Interface, MemoryKind, Offer};
use libloading::os::unix::Library;

const CASES: &[Case] = &[
    ("detection", "", &[], detection),
    ("dma-buf", "", &[], dmabuf),
    ("no dma-buf", "", &[("FAKE_HSA_DMABUF", "0"), ("FAKE_HSA_UUID", "0")], no_dmabuf),
    ("old runtime", "old", &[], old),
    ("ipc", "", &[], ipc),
    ("copies", "", &[], copies),
    ("broken stream", "", &[("FAKE_FAULT", "hsa_copy_engine=-7@2")], || drop(fakes::broken_stream(up()))),
    ("faults", "", &[], faults),
    ("no gpu", "", &[("FAKE_DEVICES", "0")], || refused(Iface::Rocr, errno::ENODEV, "lists no GPU")),
    ("no kfd", "", &[("FAKE_DEVICES", "0"), ("FAKE_HSA_NO_KFD", "1")], || {
        refused(Iface::Rocr, errno::ENODEV, "HSA_STATUS_ERROR_OUT_OF_RESOURCES")
    }),
    ("not loaded", "", &[("GDRFAB_HMEM_DRIVER", "adopt")], || refused(Iface::Rocr, errno::ENOSYS, "is not loaded")),
    ("adopted", "", &[("GDRFAB_HMEM_DRIVER", "adopt")], adopted),
    ("unknown code", "", &[("FAKE_FAULT", "hsa_iterate_agents=0x77")], || refused(Iface::Rocr, errno::EIO, "hsa_iterate_agents: 0x77")),
];

const PAGE: u64 = 4096;

#[test]
fn rocr() {
    fakes::each(CASES, &[("importer", importer)]);
}

fn up() -> &'static dyn Interface {
    hmem::get(Iface::Rocr).unwrap()
}

fn adopted() {
    // SAFETY: the fake has no constructors.
    let app = unsafe { Library::new("libhsa-runtime64.so.1") }.unwrap();
    refused(Iface::Rocr, errno::ENODEV, "the process has not initialised HSA");
    // SAFETY: the prototype of hsa.h.
    assert_eq!(unsafe { app.get::<unsafe extern "C" fn() -> u32>(b"hsa_init\0").unwrap()() }, 0);
    assert_eq!(up().devices().len(), 2);
}

fn detection() {
    let up = up();
    let facts = up.devices();
    assert_eq!((facts.len(), facts[1].pci.as_str(), facts[1].name.as_str()), (2, "0000:41:00.0", "Fake Instinct"));
    assert_eq!((&facts[1].id, &facts[1].peers, facts[1].memory), (b"00fa4e0000000001", &vec![0], 16 << 30));
    assert!(facts[1].dmabuf.is_none() && facts[1].ipc.is_none());

    let a = up.alloc(1, PAGE + 1).unwrap();
    let found = up.detect(a + 5).unwrap().unwrap();
    assert_eq!((found.base, found.len, found.device, found.kind), (a, 2 * PAGE, 1, MemoryKind::Plain));
    assert!(found.id != 0 && up.identity(a) == Some(found.id) && up.identity(a + PAGE) == Some(found.id));
    assert!(up.detect(a + 2 * PAGE).unwrap().is_none_or(|next| next.id != found.id));
    assert!(up.detect(&found as *const _ as u64).unwrap().is_none() && up.detect(0).unwrap().is_none());
    assert_eq!(hmem::span(up, a, 2 * PAGE).unwrap().len(), 1);
    assert!(hmem::span(up, a, 1 << 40).is_err());

    up.free(a).unwrap();
    assert_eq!(up.identity(a), None);
    fails(up.free(a), errno::EINVAL, "not an address that gdrfab allocated");
    // Sooner or later another allocation has the same address.
    let again = (0..50).map(|_| up.alloc(1, 2 * PAGE).unwrap()).find(|b| *b == a);
    if let Some(b) = again {
        assert_ne!(up.identity(b).unwrap(), found.id);
    }
    fails(up.alloc(7, 1), errno::EINVAL, "device");

    let mut host = vec![0u8; 3 * PAGE as usize];
    let pinned = up.pin(host.as_mut_ptr() as u64, host.len() as u64).unwrap();
    let found = up.detect(host.as_ptr() as u64 + 1).unwrap().unwrap();
    assert_eq!((found.kind, found.base, found.len), (MemoryKind::Pinned, host.as_ptr() as u64, 3 * PAGE));
    drop(pinned);
    assert!(up.detect(host.as_ptr() as u64).unwrap().is_none());
}

fn dmabuf() {
    let up = up();
    let a = up.alloc(0, 4 * PAGE).unwrap();
    for pcie in [false, true] {
        let buf = up.export_dmabuf(a + 100, 200, pcie).unwrap();
        assert_eq!((buf.offset, buf.len), (100, 4 * PAGE));
    }
    fails(up.export_dmabuf(a + PAGE, 4 * PAGE, false), errno::EINVAL, "beyond their allocation");
    fails(up.export_dmabuf(&up as *const _ as u64, 1, false), errno::EINVAL, "not rocr memory");
    let host = [0u8; 64];
    let _pinned = up.pin(host.as_ptr() as u64, 64).unwrap();
    fails(up.export_dmabuf(host.as_ptr() as u64, 1, false), errno::EOPNOTSUPP, "pinned");
}

fn no_dmabuf() {
    let up = up();
    assert_eq!(&up.devices()[0].id, b"0000:40:00.0\0\0\0\0");
    assert!(up.devices()[0].dmabuf.is_some());
    fails(up.export_dmabuf(up.alloc(0, 1).unwrap(), 1, false), errno::EOPNOTSUPP, "DMABUF_SUPPORTED");
}

fn old() {
    let up = up();
    let a = up.alloc(0, PAGE).unwrap();
    assert_eq!((up.identity(a), up.detect(a).unwrap().unwrap().len), (Some(0), PAGE));
    fails(up.export_dmabuf(a, 1, false), errno::ENOSYS, "no symbol hsa_amd_portable_export_dmabuf");
    store(up, 0, a, b"old").unwrap();
    assert_eq!(load(up, 0, a, 3).unwrap(), b"old");
}

fn ipc() {
    let up = up();
    let a = up.alloc(1, 3 * PAGE).unwrap();
    store(up, 1, a + PAGE, b"from the exporter").unwrap();
    let export = up.export(&up.detect(a + 7).unwrap().unwrap()).unwrap();
    assert_eq!((export.base, export.len), (a, 3 * PAGE));
    assert!(again("importer").env("HANDLE", hex(&export.handle)).status().unwrap().success());
    assert_eq!(load(up, 1, a + 2 * PAGE - 4, 8).unwrap(), b"imported");
}

fn importer() {
    let up = up();
    let handle = unhex(&std::env::var("HANDLE").unwrap());
    let offer = |how, len| Offer { how, device: *b"00fa4e0000000001", handle, fd: None, len };
    let open = |len| up.import(&offer(1, len), None);
    let one = open(3 * PAGE).unwrap();
    assert_eq!((one.device, one.len), (1, 3 * PAGE));
    assert_eq!(load(up, 1, one.base + PAGE, 17).unwrap(), b"from the exporter");
    store(up, 1, one.base + 2 * PAGE - 4, b"imported").unwrap();
    assert_eq!(up.detect(one.base + 1).unwrap().unwrap().kind, MemoryKind::Imported);
    // Imported memory cannot be exported again: the runtime would crash.
    fails(up.export_dmabuf(one.base, 1, false), errno::EOPNOTSUPP, "imported");
    fails(up.export(&up.detect(one.base).unwrap().unwrap()).map(|_| ()), errno::EOPNOTSUPP, "imported");
    let (two, base) = (open(3 * PAGE).unwrap(), one.base);
    // Between an import and memory of the other GPU, in order.
    let b = up.alloc(0, PAGE).unwrap();
    let mut stream = up.stream(0).unwrap();
    // SAFETY: all of it is device memory, valid until the stream is done.
    let last = unsafe {
        stream.post(Dir::Within, b, two.base + PAGE, 17).unwrap();
        stream.post(Dir::Within, two.base, b, 17).unwrap()
    };
    while stream.done().unwrap() != last {}
    assert_eq!(load(up, 1, two.base, 17).unwrap(), b"from the exporter");
    drop((one, two, stream));
    assert!(up.detect(base).unwrap().is_none());
    // A peer that gives a wrong length, handle or kind.
    fails(open(64 * PAGE), errno::EINVAL, "is shorter than the");
    fails(up.import(&offer(9, PAGE), None), errno::EINVAL, "kind 9");
    let nothing = Offer { handle: [0; HANDLE_BYTES], ..offer(1, PAGE) };
    fails(up.import(&nothing, None), errno::EINVAL, "hsa_amd_ipc_memory_attach");
}

fn copies() {
    let up = up();
    let (a, b) = (up.alloc(0, 4 * PAGE).unwrap(), up.alloc(1, 4 * PAGE).unwrap());
    let text = pattern(PAGE as usize);
    store(up, 0, a + 100, &text).unwrap();
    // SAFETY: device memory.
    unsafe { up.copy(0, Dir::Within, b + 50, a + 100, text.len()) }.unwrap();
    assert_eq!(load(up, 1, b + 50, text.len()).unwrap(), text);

    // Every copy reads the bytes that the one before wrote: pinned and pageable host memory, both GPUs.
    let (mut pinned_host, mut host) = (vec![0u8; 64], vec![1u8, 2, 3, 4, 5, 6, 7, 8]);
    let pinned = up.pin(pinned_host.as_mut_ptr() as u64, 64).unwrap();
    let (p, h) = (pinned_host.as_mut_ptr() as u64 + 8, host.as_mut_ptr() as u64);
    let mut stream = up.stream(0).unwrap();
    let mut last = 0;
    for round in 0..100 {
        // SAFETY: all buffers live until the stream is done.
        unsafe {
            stream.post(Dir::ToDevice, a, h, 8).unwrap();
            stream.post(Dir::Within, b + 8, a, 8).unwrap();
            stream.post(Dir::FromDevice, p, b + 8, 8).unwrap();
            stream.post(Dir::ToDevice, a + 16, p, 8).unwrap();
            stream.post(Dir::Within, b + 16, a + 16, 8).unwrap();
            stream.post(Dir::Within, a + 32, b + 16, 0).unwrap();
            last = if round % 2 == 0 {
                stream.post(Dir::FromDevice, h, b + 16, 8).unwrap()
            } else {
                stream.post(Dir::Within, a + 24, b + 16, 8).unwrap()
            };
        }
        assert_eq!(last, 7 * (round + 1));
        if round % 10 == 0 {
            stream.done().unwrap();
        }
    }
    while stream.done().unwrap() != last {}
    drop((stream, pinned));
    assert_eq!((load(up, 0, a + 24, 8).unwrap(), host), ((1..=8).collect(), (1..=8).collect()));
    assert_eq!(pinned_host[8..16], [1, 2, 3, 4, 5, 6, 7, 8]);

    // A stream dropped with copies in flight waits for them.
    let mut stream = up.stream(1).unwrap();
    // SAFETY: device memory.
    unsafe {
        stream.post(Dir::Within, a + 64, b + 16, 4).unwrap();
        stream.post(Dir::Within, a + 68, a + 64, 4).unwrap();
    }
    drop(stream);
    assert_eq!(load(up, 0, a + 68, 4).unwrap(), [1, 2, 3, 4]);
}

/// Every call refused once, with nothing left open.
fn faults() {
    let up = up();
    let a = up.alloc(0, PAGE).unwrap();
    let all = up.detect(a).unwrap().unwrap();
    let before = fds();
    let mut host = [0u8; 64];
    let h = host.as_mut_ptr() as u64;
    refuse("hsa_amd_memory_pool_allocate=0x1008", errno::ENOMEM, &|| up.alloc(0, 1).map(|_| ()));
    refuse("hsa_amd_agents_allow_access=0x1001", errno::EINVAL, &|| up.alloc(0, 1).map(|_| ()));
    refuse("hsa_amd_pointer_info=0x1008", errno::ENOMEM, &|| up.detect(h).map(|_| ()));
    refuse("hsa_amd_portable_export_dmabuf=0x1004", errno::EINVAL, &|| up.export_dmabuf(a, 1, false).map(|_| ()));
    refuse("hsa_amd_portable_export_dmabuf_v2=0x1000", errno::EIO, &|| up.export_dmabuf(a, 1, true).map(|_| ()));
    refuse("hsa_amd_ipc_memory_create=0x2f", errno::EIO, &|| up.export(&all).map(|_| ()));
    refuse("hsa_memory_copy=0x1003", errno::EINVAL, &|| store(up, 0, a, &[1, 2]));
    refuse("hsa_amd_memory_lock=0x1008", errno::ENOMEM, &|| up.pin(h, 64).map(|_| ()));
    // SAFETY: device memory.
    let within = || unsafe { up.stream(0)?.post(Dir::Within, a, a + 64, 64) }.map(|_| ());
    refuse("hsa_signal_create=0x1008", errno::ENOMEM, &within);
    refuse("hsa_amd_memory_async_copy=0x1004", errno::EINVAL, &within);
    // Without a notification of its end an allocation has no identity, and is found nevertheless.
    let b = up.alloc(0, PAGE).unwrap();
    fault("hsa_amd_register_deallocation_callback=0x1008");
    assert_eq!(up.identity(b), Some(0));
    fault("");
    assert!(up.identity(b).unwrap() > 0);
    // The allocations of the fake hold one descriptor each.
    assert_eq!(fds(), before + 3);
}
