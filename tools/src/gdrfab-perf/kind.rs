// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kinds of memory: their names on the command line, and the numbers by which a plan tells them to the server.

use crate::devmem::How;
use gdrfab::hmem::{Iface, Site};

/// The way in which a region of device memory is registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Given {
    /// By its address; the library chooses how to reach it.
    Address,
    /// As a dma-buf that the program exported, with the device's address as the address of its first byte.
    Dmabuf,
    /// The same, with the mapping that goes through the PCIe BAR.
    Pcie,
}

impl Given {
    const ALL: [Given; 3] = [Given::Address, Given::Dmabuf, Given::Pcie];

    fn name(self) -> &'static str {
        match self {
            Given::Address => "address",
            Given::Dmabuf => "dmabuf",
            Given::Pcie => "pcie",
        }
    }
}

/// The kind of memory under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The program's own heap: peers cannot map it.
    Malloc,
    /// Memory of `gdrfab_mem_alloc()`, which peers can map.
    Alloc,
    /// A memfd of the program, registered by descriptor.
    Memfd,
    /// Anonymous memory in pages of 2 MiB, which gives a device fewer entries to translate.
    Hugepages,
    /// A dma-buf over a memfd, registered by descriptor.
    Udmabuf,
    /// A dma-buf of the kernel's system heap, registered by descriptor.
    DmaHeap,
    /// Memory of a device.
    Device(Site, How, Given),
}

/// The largest number of a device that is accepted.
const MAX_DEVICE: u32 = 4095;
/// The code of device memory; other kinds do not use this number.
const DEVICE: u32 = 3;

impl Kind {
    /// The kinds, with the number by which peers know each.
    const NUMBERED: [(Kind, u32); 6] =
        [(Kind::Malloc, 0), (Kind::Alloc, 1), (Kind::Memfd, 2), (Kind::Hugepages, 4), (Kind::Udmabuf, 5), (Kind::DmaHeap, 6)];
    /// The kinds that every machine has.
    #[cfg(test)]
    pub const EVERYWHERE: [Kind; 3] = [Kind::Malloc, Kind::Alloc, Kind::Memfd];
    pub const EXPECTED: &str = "host, malloc, memfd, hugepages, udmabuf, dma-heap, or a device such as cuda:0, rocr:0 (rocm), ze:0, \
        neuron:0, synapseai:0 (gaudi), also as cuda:0,dmabuf or cuda:0,pcie (of cuda also cuda:0,plain, pool, vmm, vmm2 or managed)";

    pub fn name(self) -> String {
        match self {
            Kind::Malloc => "malloc".into(),
            Kind::Alloc => "alloc".into(),
            Kind::Memfd => "memfd".into(),
            Kind::Hugepages => "hugepages".into(),
            Kind::Udmabuf => "udmabuf".into(),
            Kind::DmaHeap => "dma-heap".into(),
            Kind::Device(site, how, given) => {
                let mut name = site.to_string();
                if site.iface == Iface::Cuda {
                    name.push_str(&format!(",{}", how.name()));
                }
                if given != Given::Address {
                    name.push_str(&format!(",{}", given.name()));
                }
                name
            }
        }
    }

    pub fn parse(name: &str) -> Option<Kind> {
        if name == "host" {
            return Some(Kind::Alloc);
        }
        if let Some((host, _)) = Kind::NUMBERED.into_iter().find(|(k, _)| k.name() == name) {
            return Some(host);
        }
        let mut words = name.split(',');
        let place = words.next()?;
        let (vendor, number) = place.split_once(':').unwrap_or((place, "0"));
        let iface = named_iface(vendor)?;
        let device = number.parse().ok()?;
        let (mut how, mut given) = (None, None);
        for word in words {
            let as_given = Given::ALL.into_iter().find(|g| *g != Given::Address && g.name() == word);
            match (how, given, How::ALL.into_iter().find(|h| h.name() == word), as_given) {
                (None, None, Some(h), _) => how = Some(h),
                (_, None, None, Some(g)) => given = Some(g),
                _ => return None,
            }
        }
        Kind::device(Site { iface, device }, how, given.unwrap_or(Given::Address))
    }

    fn device(site: Site, how: Option<How>, given: Given) -> Option<Kind> {
        let known = how.is_none() || site.iface == Iface::Cuda;
        (known && site.device <= MAX_DEVICE && !site.is_host()).then_some(Kind::Device(site, how.unwrap_or(How::Plain), given))
    }

    /// The number by which peers know the kind.
    pub fn code(self) -> u32 {
        let of = |position: Option<usize>| position.unwrap_or(0) as u32;
        match self {
            Kind::Device(site, how, given) => {
                let given = of(Given::ALL.iter().position(|g| *g == given));
                let how = of(How::ALL.iter().position(|h| *h == how));
                DEVICE | (site.iface as u32) << 8 | given << 12 | how << 16 | site.device << 20
            }
            host => Kind::NUMBERED.into_iter().find(|(k, _)| *k == host).map_or(0, |(_, code)| code),
        }
    }

    pub fn from_code(code: u32) -> Option<Kind> {
        if code & 0xff != DEVICE {
            return Kind::NUMBERED.into_iter().find(|(_, c)| *c == code).map(|(k, _)| k);
        }
        let iface = Iface::from_raw(code >> 8 & 0xf)?;
        let given = Given::ALL.get((code >> 12 & 0xf) as usize)?;
        let how = How::ALL.get((code >> 16 & 0xf) as usize)?;
        Kind::device(Site { iface, device: code >> 20 }, Some(*how).filter(|h| *h != How::Plain), *given)
    }

    /// The device whose driver has to copy before the CPU can see the bytes.
    pub fn site(self) -> Site {
        match self {
            Kind::Device(site, ..) => site,
            _ => Site::HOST,
        }
    }

    pub fn is_device(self) -> bool {
        !self.site().is_host()
    }
}

/// A vendor's interface by its own name, or by its name in perftest.
fn named_iface(vendor: &str) -> Option<Iface> {
    let name = match vendor {
        "rocm" => Iface::Rocr.name(),
        "gaudi" => Iface::SynapseAi.name(),
        other => other,
    };
    Iface::ALL.into_iter().find(|i| *i != Iface::System && i.name() == name)
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn kinds_are_read_written_and_numbered_alike() {
        for name in [
            "malloc",
            "alloc",
            "memfd",
            "hugepages",
            "udmabuf",
            "dma-heap",
            "cuda:0,plain",
            "cuda:3,vmm2",
            "cuda:1,managed",
            "cuda:0,vmm,dmabuf",
            "cuda:4095,pool,pcie",
            "rocr:7",
            "rocr:7,pcie",
            "ze:0",
            "neuron:15,dmabuf",
            "synapseai:2",
        ] {
            let kind = Kind::parse(name).unwrap();
            assert_eq!((kind.name(), Kind::from_code(kind.code())), (name.to_string(), Some(kind)));
        }
        for (alias, name) in [
            ("host", "alloc"),
            ("cuda", "cuda:0,plain"),
            ("cuda:2,dmabuf", "cuda:2,plain,dmabuf"),
            ("rocm:1,dmabuf", "rocr:1,dmabuf"),
            ("gaudi", "synapseai:0"),
        ] {
            assert_eq!(Kind::parse(alias), Kind::parse(name), "{alias}");
        }
    }

    #[test]
    fn unknown_kinds_are_refused() {
        for wrong in [
            "",
            "gpu:0",
            "cuda:x",
            "cuda:0,vmm3",
            "cuda:0,",
            "cuda:0,dmabuf,vmm",
            "cuda:0,dmabuf,pcie",
            "cuda:0,vmm,vmm",
            "cuda:0,address",
            "rocr:0,pool",
            "rocr:0,plain",
            "system:0",
            "ze:5000",
            "malloc:0",
            "udmabuf,dmabuf",
        ] {
            assert_eq!(Kind::parse(wrong), None, "{wrong}");
        }
        let codes = [u32::MAX, 3, 7, 256, 3 | 6 << 8, 3 | 1 << 8 | 5 << 16, 3 | 1 << 8 | 3 << 12, 3 | 2 << 8 | 1 << 16];
        assert!(codes.into_iter().all(|c| Kind::from_code(c).is_none()));
    }
}
