// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The NICs behind a provider's candidates: a block for each port, with its addresses and abilities.

use gdrfab::config;
use gdrfab::error::Error;
use gdrfab::fabric::{self, Info, Nic};
use serde_json::{Value, json};
use std::fmt::Write;

/// One port, and the candidates that use it, in the order of discovery.
pub struct Port {
    name: String,
    nic: Result<Nic, Error>,
    domains: Vec<Domain>,
}

struct Domain {
    info: Info,
    nic: Option<Nic>,
}

/// Names of the bits of `Nic::odp`, from bit 0.
const ODP: [&str; 7] = ["supported", "implicit", "send", "receive", "write", "read", "atomics"];

/// Queries the NIC of every candidate that names a device.
pub fn of(infos: &[Info]) -> Vec<Port> {
    let mut ports: Vec<Port> = Vec::new();
    for info in infos {
        let Some(domain) = &info.domain_name else { continue };
        let asked = fabric::nic(info);
        let name = match &asked {
            Ok(nic) => format!("{}:{}", nic.device, nic.port),
            Err(_) => domain.splitn(3, ':').take(2).collect::<Vec<_>>().join(":"),
        };
        let place = ports.iter().position(|p| p.name == name).unwrap_or_else(|| {
            ports.push(Port { name, nic: asked.clone(), domains: Vec::new() });
            ports.len() - 1
        });
        ports[place].domains.push(Domain { info: info.clone(), nic: asked.ok() });
    }
    ports
}

/// Bits per second as people write them.
fn rate(bits: u64) -> String {
    match bits {
        0 => "speed unknown".into(),
        n if n % 1_000_000_000 == 0 => format!("{} Gb/s", n / 1_000_000_000),
        n => format!("{:.1} Gb/s", n as f64 / 1e9),
    }
}

fn odp(nic: &Nic) -> String {
    if nic.odp & 1 == 0 {
        return "no".into();
    }
    let able: Vec<&str> = ODP.iter().enumerate().skip(1).filter(|(i, _)| nic.odp & 1 << i != 0).map(|(_, word)| *word).collect();
    format!("{}{}", able.join(", "), if config::get().verbs.odp { "" } else { " (used with GDRFAB_VERBS_ODP=1)" })
}

fn relaxed() -> &'static str {
    match config::get().verbs.relaxed_ordering {
        true => "asked for; no device says whether it does so",
        false => "no (asked for with GDRFAB_VERBS_RELAXED_ORDERING=1)",
    }
}

impl Port {
    pub fn text(&self, out: &mut String, verbose: bool) {
        let mut line = |name: &str, value: &str| {
            let _ = writeln!(out, "  {name:<16} {value}");
        };
        match &self.nic {
            Ok(nic) => {
                let mut words = vec![nic.state.to_string(), nic.link.to_string(), rate(nic.speed), format!("MTU {}", nic.mtu)];
                words.extend(nic.netdev.iter().map(|name| format!("interface {name}")));
                words.extend(nic.pci.iter().map(|pci| format!("PCI {pci}")));
                words.extend(nic.numa.map(|node| format!("NUMA node {node}")));
                line(&self.name, &words.join(", "));
                if let Some(near) = nic.near {
                    line("  distance", near.words());
                }
                match &nic.dmabuf {
                    Ok(()) => line("  dma-buf", "yes"),
                    Err(e) => line("  dma-buf", &format!("no: {e}")),
                }
                line("  on demand", &odp(nic));
                line("  relaxed order", relaxed());
                if verbose {
                    let part = format!("{:04x}:{:04x} version {}", nic.vendor_id, nic.vendor_part_id, nic.hw_version);
                    line("  hardware", &format!("{part}, firmware {}, GUID {:016x}", nic.firmware, nic.guid));
                    let atomics = ["none", "among this device's", "with the CPUs' too"];
                    line("  atomics", atomics.get(nic.atomics as usize).unwrap_or(&"unknown"));
                    line("  regions", &format!("{} of up to {} bytes", nic.max_mr, nic.max_mr_size));
                    line("  endpoints", &format!("{} of {} work requests with {} pieces", nic.max_qp, nic.max_qp_wr, nic.max_sge));
                    line("  reads", &format!("{} served, {} under way at once", nic.reads_in, nic.reads_out));
                }
            }
            Err(e) => line(&self.name, &format!("no: {e}")),
        }
        for domain in &self.domains {
            let (info, nic) = (&domain.info, &domain.nic);
            let name = info.domain_name.as_deref().unwrap_or_default();
            let mut words = Vec::new();
            words.extend(nic.iter().map(|nic| format!("GID {} {}", nic.gid_index, nic.gid)));
            words.push(info.src_addr.clone().unwrap_or("no IP address: connects by exchanged addresses only".into()));
            match &info.reason {
                Some(why) if self.nic.is_ok() => line(&format!("  {name}"), &format!("no: {why}")),
                Some(_) => {}
                None => line(&format!("  {name}"), &words.join(", ")),
            }
        }
    }

    pub fn json(&self) -> Value {
        let domains: Value = self.domains.iter().map(Domain::json).collect();
        let nic = match &self.nic {
            Ok(nic) => nic,
            Err(e) => return json!({"name": self.name, "reason": e.to_string(), "domains": domains}),
        };
        let odp: Value = ODP.iter().enumerate().filter(|(i, _)| nic.odp & 1 << i != 0).map(|(_, word)| *word).collect();
        json!({
            "name": self.name,
            "device": nic.device,
            "port": nic.port,
            "state": nic.state,
            "link": nic.link,
            "speed": nic.speed,
            "mtu": nic.mtu,
            "lid": nic.lid,
            "netdev": nic.netdev,
            "pci": nic.pci,
            "numa_node": nic.numa,
            "distance": nic.near.map(|near| near.words().to_string()),
            "guid": format!("{:016x}", nic.guid),
            "vendor_id": nic.vendor_id,
            "vendor_part_id": nic.vendor_part_id,
            "hw_version": nic.hw_version,
            "firmware": nic.firmware,
            "dmabuf": possible(nic.dmabuf.as_ref().err()),
            "odp": odp,
            "relaxed_ordering": relaxed(),
            "atomics": nic.atomics,
            "max_mr_size": nic.max_mr_size,
            "max_mr": nic.max_mr,
            "max_message": nic.max_message,
            "max_qp": nic.max_qp,
            "max_qp_wr": nic.max_qp_wr,
            "max_cqe": nic.max_cqe,
            "max_sge": nic.max_sge,
            "domains": domains,
        })
    }
}

impl Domain {
    fn json(&self) -> Value {
        let (info, nic) = (&self.info, self.nic.as_ref());
        json!({
            "domain": info.domain_name,
            "usable": info.reason.is_none(),
            "reason": info.reason.as_ref().map(Error::to_string),
            "fabric": info.fabric_name,
            "src_addr": info.src_addr,
            "gid": nic.map(|n| n.gid.clone()),
            "gid_index": nic.map_or(0, |n| n.gid_index),
            "gid_type": nic.map(|n| n.gid_type.to_string()),
            "inject_size": info.inject_size,
            "cq_data_size": info.cq_data_size,
            "max_msg_size": info.max_msg_size,
        })
    }
}

fn possible(refused: Option<&Error>) -> Value {
    json!({"possible": refused.is_none(), "reason": refused.map(Error::to_string)})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_written_as_they_are_spoken() {
        assert_eq!([rate(0), rate(400_000_000_000), rate(2_500_000_000)], ["speed unknown", "400 Gb/s", "2.5 Gb/s"]);
    }
}
