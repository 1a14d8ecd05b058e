// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The network interfaces of this host, in order to find the IP address that belongs to a GID. rdma_cm uses IP
//! addresses, but the GIDs of iWARP and InfiniBand ports hold hardware addresses.

use std::ffi::CStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An interface. Its hardware address has 6 bytes for Ethernet, 20 for IP over InfiniBand.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Netdev {
    pub name: String,
    pub hardware: Vec<u8>,
    pub ips: Vec<IpAddr>,
}

impl Netdev {
    /// The address to use among the interface's addresses: IPv4, else a global IPv6 address, else any.
    pub fn preferred(&self) -> Option<IpAddr> {
        let rank = |ip: &&IpAddr| match ip {
            IpAddr::V4(_) => 0,
            IpAddr::V6(v6) => 1 + v6.is_unicast_link_local() as u8,
        };
        self.ips.iter().min_by_key(rank).copied()
    }
}

/// Parses a hardware address in the form "02:00:5e:...".
fn hardware(text: &str) -> Option<Vec<u8>> {
    text.trim().split(':').map(|byte| u8::from_str_radix(byte, 16).ok()).collect()
}

/// The name of an interface, if the index is one of this network namespace.
pub fn name_of(index: u32) -> Option<String> {
    let mut name = [0u8; libc::IF_NAMESIZE];
    // SAFETY: there is room for IF_NAMESIZE bytes, as the call demands.
    let found = unsafe { libc::if_indextoname(index, name.as_mut_ptr().cast()) };
    if found.is_null() { None } else { CStr::from_bytes_until_nul(&name).ok()?.to_str().ok().map(str::to_string) }
}

/// The index of an interface, which is also the scope of its link-local addresses; 0 if there is no such interface.
pub fn index_of(name: &str) -> u32 {
    // SAFETY: a text that ends with NUL.
    std::ffi::CString::new(name).map_or(0, |name| unsafe { libc::if_nametoindex(name.as_ptr()) })
}

/// All visible interfaces. An interface that cannot be read is left out.
pub fn all() -> Vec<Netdev> {
    let mut found: Vec<Netdev> = Vec::new();
    let mut list: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: the call writes the list on success.
    if unsafe { libc::getifaddrs(&mut list) } != 0 {
        return found;
    }
    let mut at = list;
    // SAFETY: an element of the list, which ends with null.
    while let Some(entry) = unsafe { at.as_ref() } {
        at = entry.ifa_next;
        // SAFETY: the name is part of the list, and ends with NUL.
        let Ok(name) = unsafe { CStr::from_ptr(entry.ifa_name) }.to_str() else { continue };
        let i = found.iter().position(|dev| dev.name == name).unwrap_or_else(|| {
            let text = std::fs::read_to_string(format!("/sys/class/net/{name}/address")).unwrap_or_default();
            found.push(Netdev { name: name.to_string(), hardware: hardware(&text).unwrap_or_default(), ips: Vec::new() });
            found.len() - 1
        });
        // SAFETY: the address is part of the list, or null.
        if let (Some(ip), Some(dev)) = (unsafe { ip(entry.ifa_addr) }, found.get_mut(i)) {
            dev.ips.push(ip);
        }
    }
    // SAFETY: made above, and nothing of the list is kept.
    unsafe { libc::freeifaddrs(list) };
    found
}

/// The IP address in a socket address. `None`: the address has another family, or there is none.
///
/// # Safety
/// `address` is null, or a socket address as long as its family says.
unsafe fn ip(address: *const libc::sockaddr) -> Option<IpAddr> {
    if address.is_null() {
        return None;
    }
    // SAFETY: the caller promises as many bytes as the family says. The reads are unaligned because nothing is promised about alignment.
    unsafe {
        match (&raw const (*address).sa_family).read_unaligned() as i32 {
            libc::AF_INET => {
                let v4 = address.cast::<libc::sockaddr_in>().read_unaligned();
                Some(IpAddr::V4(Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr))))
            }
            libc::AF_INET6 => {
                let v6 = address.cast::<libc::sockaddr_in6>().read_unaligned();
                Some(IpAddr::V6(Ipv6Addr::from(v6.sin6_addr.s6_addr)))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hardware_addresses_are_read_as_sysfs_writes_them() {
        assert_eq!(hardware("02:00:5e:10:00:0f\n"), Some(vec![2, 0, 0x5e, 0x10, 0, 0x0f]));
        assert_eq!(hardware("80:00:02:08:fe:80:00:00:00:00:00:00:00:02:c9:03:00:11:22:33\n").map(|b| b.len()), Some(20));
        assert_eq!(hardware("\n"), None);
        assert_eq!(hardware("zz:00"), None);
    }

    #[test]
    fn loopback_is_found_with_its_address() {
        let all = all();
        let Some(lo) = all.iter().find(|dev| dev.name == "lo") else { return };
        assert!(
            lo.ips.is_empty() || lo.ips.contains(&IpAddr::V4(Ipv4Addr::LOCALHOST)) || lo.ips.contains(&IpAddr::V6(Ipv6Addr::LOCALHOST))
        );
        assert_eq!(name_of(index_of("lo")).as_deref(), Some("lo"));
        assert_eq!(index_of("no-such-dev"), 0);
    }

    #[test]
    fn ipv4_is_preferred_then_global_ipv6() {
        let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
        let dev = |ips: &[&str]| Netdev { ips: ips.iter().map(|t| ip(t)).collect(), ..Netdev::default() };
        assert_eq!(dev(&["fe80::1", "2001:db8::1", "10.0.0.1"]).preferred(), Some(ip("10.0.0.1")));
        assert_eq!(dev(&["fe80::1", "2001:db8::1"]).preferred(), Some(ip("2001:db8::1")));
        assert_eq!(dev(&["fe80::1"]).preferred(), Some(ip("fe80::1")));
        assert_eq!(dev(&[]).preferred(), None);
    }
}
