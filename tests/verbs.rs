// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Discovery and registration of the verbs provider, against the fake libibverbs of `c-tests/fakes`; `fakes` runs the cases. Queues are
//! tested in verbs_queues.rs and verbs_failures.rs, real data transfer in a virtual machine (tests/check-verbs.sh).

mod fakes;
#[path = "fakes/verbs.rs"]
mod world;

use fakes::{Case, fails, fault};
use gdrfab::error::{Code, errno};
use gdrfab::fabric::{self, Info, Near};
use gdrfab::hmem::{self, Iface, MemoryKind, Site};
use gdrfab::mr::{Access, PathPolicy, Paths};
use gdrfab::mr::{Attr, Memory, Source};
use gdrfab::prov::flags;
use std::fs::File;
use std::os::fd::AsFd;
use world::{LIB, World, domains, hints, iov, list, lives, memory, named, write};

const CASES: &[Case] = &[
    ("absent", "verbs", &[("GDRFAB_DEBUG", "ibverbs=/nowhere/libibverbs.so.1,rdmacm=/nowhere/librdmacm.so.1")], absent),
    ("discovery", "verbs", &[LIB, ("FAKE_DEVICES", "12")], discovery),
    ("one device allowed", "verbs", &[LIB, ("FAKE_DEVICES", "3"), ("GDRFAB_VERBS_DEVICE", "fake1")], one_device),
    ("InfiniBand", "verbs", &[LIB, ("FAKE_IBVERBS_LINK", "ib")], infiniband),
    ("the nic", "verbs", &[LIB], the_nic),
    ("an old library", "verbs/old", &[LIB], old_library),
    ("near an accelerator", ":verbs", &[LIB], near),
    ("registration", "verbs", &[LIB], registration),
    ("dma-bufs refused", ":verbs", &[LIB, ("FAKE_IBVERBS_DMABUF", "0")], no_dmabuf),
    ("device memory", ":verbs", &[LIB], device_memory),
];

#[test]
fn verbs() {
    world::each(CASES);
}

fn absent() {
    fails(list(0, &hints()), errno::ENODATA, "/nowhere/libibverbs.so.1");
    let all = list(flags::GETINFO_ALL, &Info { prov_name: None, ..hints() }).unwrap();
    let shm = all.iter().find(|i| i.prov_name.as_deref() == Some("shm")).unwrap();
    let verbs = all.iter().find(|i| i.prov_name.as_deref() == Some("verbs")).unwrap();
    assert!(shm.reason.is_none(), "the rest works");
    assert!(verbs.reason.as_ref().is_some_and(|e| e.words.contains("libibverbs")), "{:?}", verbs.reason);
    fails(fabric::nic(shm), errno::ENODATA, "shm");
    fails(fabric::nic(verbs), errno::EINVAL, "domain_name");
}

fn discovery() {
    let all = list(0, &hints()).unwrap();
    assert_eq!(domains(&all)[..3], ["fake0:1:roce-v2", "fake1:1:roce-v2", "fake2:1:roce-v2"]);
    assert_eq!(domains(&all)[9..], ["fake9:1:roce-v2", "fake10:1:roce-v2", "fake11:1:roce-v2"], "counted, not spelt");
    assert_eq!(lives(), 0, "whatever was opened to ask is closed");
    let info = &all[0];
    assert_eq!((info.cq_data_size, info.mr_key_size, info.rma_iov_limit, info.cm_data_size), (4, 8, 1, 48));
    assert_eq!((info.mode, info.max_msg_size), (flags::RX_CQ_DATA, 1 << 30));
    assert_eq!((info.inject_size, info.fabric_name.as_deref()), (220, Some("RoCE")));
    assert_eq!(info.src_addr.as_deref().map(|a| &a[..17]), Some("verbs://127.0.0.1"));
    // If one domain is asked for, no other device is opened.
    fault("ibv_open_device=5@2");
    let one = list(0, &Info { domain_name: Some("fake7:1:roce-v2".into()), ..hints() }).unwrap();
    assert_eq!(domains(&one), ["fake7:1:roce-v2"]);
    let all = list(flags::GETINFO_ALL, &Info { domain_name: Some("fake3:1:roce-v1".into()), ..hints() }).unwrap();
    // The devices, and one entry for each of the other providers.
    assert!(all.len() == 12 + 2 && all.iter().all(|i| i.reason.as_ref().is_some_and(|e| e.errno != 0)), "{all:?}");
    // If another provider is asked for, no device is opened.
    fault("ibv_open_device=5");
    assert_eq!(list(0, &Info { prov_name: Some("shm".into()), ..hints() }).unwrap().len(), 1);
    let broken = list(0, &hints());
    assert!(
        broken.as_ref().is_err_and(|e| e.errno == errno::ENODATA && e.words.contains("(fake3): opening RDMA device fake3")),
        "{broken:?}"
    );
    fault("ibv_get_device_list=38");
    fails(list(0, &hints()), errno::ENODATA, "ib_uverbs");
    fault("");
    // Hints that cannot be met are reported per device.
    for (attr, words) in [
        (Info { cq_data_size: 8, ..hints() }, "cq_data_size"),
        (Info { mr_mode: flags::MR_MODE_VIRT_ADDR, ..hints() }, "mr_mode"),
        (Info { tx_op_flags: flags::DELIVERY_COMPLETE, ..hints() }, "tx_op_flags"),
        (Info { domain_name: Some("fake99:1:roce-v2".into()), ..hints() }, "fake99"),
    ] {
        fails(list(0, &attr), errno::ENODATA, words);
    }
}

fn one_device() {
    assert_eq!(domains(&list(0, &hints()).unwrap()), ["fake1:1:roce-v2"]);
}

fn infiniband() {
    let info = list(0, &hints()).unwrap().remove(0);
    assert_eq!((info.domain_name.as_deref(), info.fabric_name.as_deref()), (Some("fake0:1:ib"), Some("IB-fe80000000000000")));
    let nic = fabric::nic(&info).unwrap();
    assert_eq!((nic.link, nic.lid, nic.gid_type), ("InfiniBand", 7, "InfiniBand"));
}

fn the_nic() {
    let info = list(0, &hints()).unwrap().remove(0);
    let nic = fabric::nic(&info).unwrap();
    assert_eq!((nic.device.as_str(), nic.port, nic.up, nic.link, nic.mtu), ("fake0", 1, true, "Ethernet", 4096));
    assert_eq!((nic.gid.as_str(), nic.gid_index, nic.gid_type), ("::ffff:127.0.0.1", 1, "RoCE v2"));
    assert_eq!((nic.speed, nic.address.as_deref(), nic.netdev.as_deref()), (100_000_000_000, Some("127.0.0.1"), Some("lo")));
    assert_eq!((nic.firmware.as_str(), nic.atomics, nic.max_message, nic.near), ("fake", 1, 1 << 30, None));
    assert!(nic.dmabuf.is_ok() && nic.odp == 0);
    assert_eq!(lives(), 0);
    fails(
        fabric::nic(&Info { domain_name: Some("fake0:1:ib".into()), ..info.clone() }),
        errno::EADDRNOTAVAIL,
        "the domain name was made for",
    );
    fails(fabric::nic(&Info { domain_name: Some("fake5:1:ib".into()), ..info.clone() }), errno::ENODEV, "fake5");
    fails(fabric::nic(&Info { domain_name: Some("fake0".into()), ..info }), errno::EINVAL, "device:port:type");
}

fn old_library() {
    // Without the table of GIDs their types come from sysfs, which knows no fake device.
    let world = World::of(hints(), 64);
    assert_eq!(world.info.domain_name.as_deref(), Some("fake0:1:roce-v1"));
    let nic = fabric::nic(&world.info).unwrap();
    assert!(nic.dmabuf.is_err_and(|e| e.words.contains("ibv_reg_dmabuf_mr")), "the symbol is named");
    let bytes = [0u8; 64];
    let mr = world.register(memory(&[iov(&bytes)])).unwrap();
    assert_eq!(mr.facts().unwrap().paths, Paths::NIC);
    mr.close().unwrap();
}

fn near() {
    let at = |iface, device| Info { near: Some(Site { iface, device }), ..hints() };
    let all = list(0, &at(Iface::Cuda, 0)).unwrap();
    assert_eq!(all[0].near, Some(Site { iface: Iface::Cuda, device: 0 }), "kept");
    assert_eq!(fabric::nic(&all[0]).unwrap().near, Some(Near::Far), "neither sits on a bus of this host");
    fails(list(0, &at(Iface::Cuda, 9)), errno::ENODEV, "near_iface, near_device: device: 9");
}

fn registration() {
    let world = World::new();
    let before = lives();
    let bytes = vec![0u8; 3 * 4096];
    let whole = [iov(&bytes)];
    let mr = world.register(memory(&whole)).unwrap();
    let facts = mr.facts().unwrap();
    assert_eq!((facts.paths, facts.base, facts.len, facts.kind), (Paths::NIC, whole[0].addr() as u64, 3 * 4096, MemoryKind::Host));
    assert!(facts.key != 0 && facts.key <= u64::from(u32::MAX), "the device's own key");
    let words = mr.explain().unwrap();
    assert!(words.contains("fake0") && words.contains("(ibv_reg_mr): taken"), "{words}");
    mr.close().unwrap();
    mr.put_back();
    assert_eq!(lives(), before);

    // A refusal by the device is reported, and not hidden by staging.
    fault("ibv_reg_mr=12");
    fails(world.register(memory(&whole)).map(drop), errno::ENOMEM, "out of memory");
    let limit = rustix::process::Rlimit { current: Some(65536), maximum: Some(65536) };
    rustix::process::setrlimit(rustix::process::Resource::Memlock, limit).unwrap();
    fails(
        world.register(memory(&whole)).map(drop),
        errno::ENOMEM,
        "above RLIMIT_MEMLOCK, which is 65536 bytes here: raise it with `ulimit -l",
    );
    fault("");
    let hole = [named(0x10000, 4096)];
    assert!(world.register(memory(&hole)).is_err_and(|e| e.words.contains("errno 14")));
    fails(world.register(memory(&[named(0, 1)])).map(drop), errno::EINVAL, "iov[0]");
    fails(world.register(Attr { rma_event: true, ..memory(&whole) }).map(drop), errno::EOPNOTSUPP, "GDRFAB_RMA_EVENT");
    let policy = PathPolicy { require: Paths::DMABUF, ..PathPolicy::default() };
    fails(world.register(Attr { policy, ..memory(&whole) }).map(drop), errno::EOPNOTSUPP, "ruled out");
    let policy = PathPolicy { require: Paths::STAGED, ..PathPolicy::default() };
    let staged = world.register(Attr { policy, ..memory(&whole) }).unwrap();
    assert_eq!(staged.facts().unwrap().paths, Paths::STAGED);
    staged.close().unwrap();

    // A region of several ranges has no key for peers.
    let two = [named(whole[0].addr(), 100), named(whole[0].addr() + 8192, 50)];
    fails(world.register(memory(&two)).map(drop), errno::EOPNOTSUPP, "one range");
    let local = world.register(Attr { access: Access::READ | Access::WRITE, ..memory(&two) }).unwrap();
    let facts = local.facts().unwrap();
    assert_eq!((facts.iov_count, facts.len, facts.key), (2, 150, 0));
    local.close().unwrap();

    // A file that is no dma-buf is mapped and pinned.
    let file = File::from(rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
    file.set_len(4 * 4096).unwrap();
    let of = |offset, len, base_addr| Attr { source: Source::File { fd: file.as_fd(), offset, len, base_addr }, ..memory(&[]) };
    let mr = world.register(of(4096 + 8, 4096, 0x10000)).unwrap();
    assert_eq!((mr.facts().unwrap().paths, mr.facts().unwrap().base), (Paths::NIC, 0x10000 + 4096 + 8));
    mr.close().unwrap();
    fails(world.register(of(4096, 4 * 4096, 0)).map(drop), errno::EINVAL, "beyond the file");
    fails(world.register(of(u64::MAX, 2, 0)).map(drop), errno::EINVAL, "overflows");
    fails(world.register(of(0, 0, 0)).map(drop), errno::EINVAL, "dmabuf->len");
    fails(world.register(of(0, 4096, 1)).map(drop), errno::EINVAL, "differ within a page");
    fails(world.register(of(4096, 4096, u64::MAX - 4095)).map(drop), errno::EINVAL, "overflows");
    assert_eq!(lives(), before);
}

/// Without dma-bufs and peer memory, device memory is staged, or the caller gets the reason against it.
fn no_dmabuf() {
    let world = World::new();
    let info = list(0, &hints()).unwrap().remove(0);
    assert!(fabric::nic(&info).unwrap().dmabuf.is_err_and(|e| e.errno == errno::EOPNOTSUPP));
    let at = hmem::get(Iface::Cuda).unwrap().alloc(0, 8192).unwrap();
    let iovs = [named(at as usize, 8192)];
    let attr = || Attr { memory: Memory::Auto, ..memory(&iovs) };
    let mr = world.register(attr()).unwrap();
    assert_eq!(mr.facts().unwrap().paths, Paths::STAGED);
    let words = mr.explain().unwrap();
    for step in ["dma-buf with the PCIe mapping: refused, errno 95", "peer memory (ibv_reg_mr): refused, errno 14", "of the library: taken"]
    {
        assert!(words.contains(step), "{step}: {words}");
    }
    mr.close().unwrap();
    let policy = PathPolicy { require: Paths::DMABUF | Paths::PEER_MEM, ..PathPolicy::default() };
    fails(world.register(Attr { policy, ..attr() }).map(drop), errno::EOPNOTSUPP, "dma-buf: refused, errno 95");
    let policy = PathPolicy { forbid: Paths::STAGED, ..PathPolicy::default() };
    let e = world.register(Attr { policy, ..attr() }).map(drop).unwrap_err();
    assert!(e.code == Code::Path && e.words.contains("peer memory") && e.words.contains("ruled out"), "{e}");
}

fn device_memory() {
    let world = World::new();
    let up = hmem::get(Iface::Cuda).unwrap();
    let at = up.alloc(0, 8192).unwrap();
    let iovs = [named(at as usize + 256, 4096)];
    let fds = fakes::fds();
    let mr = world.register(Attr { memory: Memory::Auto, ..memory(&iovs) }).unwrap();
    let facts = mr.facts().unwrap();
    assert_eq!((facts.paths, facts.site, facts.base), (Paths::DMABUF, Site { iface: Iface::Cuda, device: 0 }, at + 256));
    assert_eq!(fakes::fds(), fds, "the device keeps the dma-buf, nobody its descriptor");
    let (a, b) = world.pair(false);
    write(&a, named(at as usize + 256, 8), mr.desc(), 1, 0).unwrap();
    write(&a, named(at as usize + 256, 8), mr.desc(), 2, flags::INJECT).unwrap();
    assert_eq!(world.contexts(), [1, 2]);
    fails(write(&a, iovs[0], 0, 3, 0), errno::EINVAL, "desc[0]");
    [a, b].iter().for_each(|ep| ep.close().unwrap());
    mr.close().unwrap();
    mr.put_back();
    let memory_of = |device| Memory::Device(Site { iface: Iface::Cuda, device });
    fails(world.register(Attr { memory: memory_of(1), ..memory(&iovs) }).map(drop), errno::EINVAL, "attr->device");
    fault("cuMemGetHandleForAddressRange=999");
    let mr = world.register(Attr { memory: memory_of(0), ..memory(&iovs) }).unwrap();
    assert_eq!(mr.facts().unwrap().paths, Paths::STAGED);
    assert!(mr.explain().unwrap().contains("999"), "the driver's own code");
    mr.close().unwrap();
    mr.put_back();
    fault("");
}
