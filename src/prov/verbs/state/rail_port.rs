// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The port of a rail: one of the ports that `GDRFAB_VERBS_RAILS` names, opened for a domain, with a protection domain
//! of its own. The first rail uses the port of the domain itself. The other ports follow in the order of the list, or
//! the nearest first if the list is `all`. Each is connected to the peer's port with the same number.

use crate::config;
use crate::error::{Error, Result};
use crate::prov::verbs::device::context::{Context, Devices, LinkLayer};
use crate::prov::verbs::device::distance;
use crate::prov::verbs::device::gid::{Gid, GidKind};
use crate::prov::verbs::device::object::Pd;
use crate::prov::verbs::device::rail_names::{self, RAILS_MAX};
use crate::prov::verbs::info::DevicePort;
use crate::prov::verbs::queue::qp::LocalPort;
use std::sync::Arc;

/// Assumed speed of a port that reports none, in bits per second.
const SPEED: u64 = 100_000_000_000;

pub struct RailPort {
    /// The name of the port: "mlx5_0:1".
    pub name: String,
    pub pd: Arc<Pd>,
    pub number: u8,
    pub gid: Gid,
    pub lid: u16,
    pub mtu: u32,
    pub ethernet: bool,
    /// Bits per second.
    pub speed: u64,
}

impl RailPort {
    fn of(DevicePort { context, port, gid }: DevicePort, pd: Option<Arc<Pd>>) -> Result<Arc<RailPort>> {
        let pd = pd.map_or_else(|| Pd::new(context.clone()), Ok)?;
        let mtu = match config::get().verbs.mtu {
            0 => port.mtu,
            asked => asked.min(port.mtu),
        };
        Ok(Arc::new(RailPort {
            name: format!("{}:{}", context.name, port.number),
            pd,
            number: port.number,
            gid,
            lid: port.lid,
            mtu,
            ethernet: port.link == LinkLayer::Ethernet,
            speed: if port.speed == 0 { SPEED } else { port.speed },
        }))
    }

    /// The ports of the rails of a domain on the port `own`. Empty if the list does not name this port or names no
    /// other port, and over iWARP.
    pub fn all(own: DevicePort, pd: &Arc<Pd>) -> Result<Vec<Arc<RailPort>>> {
        let rails = &config::get().verbs.rails;
        if rail_names::all() && own.gid.kind != GidKind::Iwarp {
            return RailPort::of_host(own, pd);
        }
        let words = rails.iter().map(|word| rail_names::parse(word)).collect::<Result<Vec<_>>>()?;
        let (name, kind) = ((own.context.name.clone(), own.port.number), own.gid.kind);
        let is_own = |(device, port): &(&str, u8)| *device == name.0 && *port == name.1;
        if words.len() < 2 || kind == GidKind::Iwarp || !words.iter().any(is_own) {
            return Ok(Vec::new());
        }
        let mut all = vec![RailPort::of(own, Some(pd.clone()))?];
        for (device, port) in words.iter().filter(|word| !is_own(word)) {
            let choice =
                DevicePort::of_port(device, *port, kind).map_err(|e| e.context(format_args!("GDRFAB_VERBS_RAILS: {device}:{port}")))?;
            all.push(RailPort::of(choice, None)?);
        }
        Ok(all)
    }

    /// This port and every other active port with an address of the same type, the nearest first.
    fn of_host(own: DevicePort, pd: &Arc<Pd>) -> Result<Vec<Arc<RailPort>>> {
        let list = Devices::list()?;
        let (place, number, kind) = (own.context.topology.clone(), own.port.number, own.gid.kind);
        let mut names = list.names();
        let offered = &config::get().verbs.devices;
        names.retain(|name| offered.is_empty() || offered.contains(name));
        names.sort_by_cached_key(|name| distance::order(name, Some(&place)));
        let own_name = own.context.name.clone();
        let mut all = vec![RailPort::of(own, Some(pd.clone()))?];
        for name in &names {
            let others = |ports: Vec<DevicePort>| ports.into_iter().filter(|choice| *name != own_name || choice.port.number != number);
            let cards =
                DevicePort::of_device(&list, name, kind).and_then(|ports| others(ports).map(|port| RailPort::of(port, None)).collect());
            // The caller has not asked for this device, so its failure is no error.
            let cards: Vec<_> = cards.unwrap_or_else(|e: Error| {
                crate::log!(Info, "{name} is not used as a rail: {e}");
                Vec::new()
            });
            all.extend(cards);
        }
        all.truncate(if all.len() > 1 { RAILS_MAX } else { 0 });
        Ok(all)
    }

    pub fn context(&self) -> &Arc<Context> {
        &self.pd.context
    }

    pub fn local(&self, psn: u32) -> LocalPort {
        LocalPort { port: self.number, gid_index: self.gid.index, psn, global: self.ethernet || self.lid == 0 }
    }
}
