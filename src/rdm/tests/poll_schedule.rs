// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The order in which lanes are polled: the number of polls of each lane, and that no lane is forgotten.

use super::*;
use crate::rdm::peers::link::Link;
use crate::rdm::peers::poll_schedule::PollSchedule;

fn schedule(count: usize) -> (PollSchedule, Vec<Arc<Link>>) {
    let info = info("shm");
    let domain = get(info.prov_name.as_deref()).unwrap().open_domain(&info, Threading::Safe).unwrap();
    let mut schedule = PollSchedule::default();
    let link = |number| Arc::new(Link::new(domain.clone().open_endpoint(&info, 0).unwrap(), 0, number));
    let links: Vec<_> = (0..count).map(link).collect();
    links.iter().for_each(|link| schedule.push(link.number as u32, link.clone()));
    (schedule, links)
}

/// Runs `turns` turns, all of which bring something (`brings`), or none. Returns the number of polls of each lane.
fn count_polls(schedule: &mut PollSchedule, turns: usize, brings: bool) -> Vec<usize> {
    let mut seen = vec![0; schedule.len()];
    for _ in 0..turns {
        let (active, silent) = schedule.turn();
        for k in 0..active + silent {
            let place = if k < active { schedule.next_active() } else { schedule.next_quiet() };
            seen[schedule[place].1.number] += 1;
        }
        schedule.end_turn(brings);
    }
    seen
}

#[test]
fn active_lanes_are_polled_each_turn_and_quiet_ones_sometimes() {
    let (mut schedule, links) = schedule(100);
    links.iter().skip(3).for_each(|link| schedule.demote(link));
    let seen = count_polls(&mut schedule, 100 * 32, true);
    assert!(seen[..3].iter().all(|n| *n == 3200), "{seen:?}");
    assert!(seen[3..].iter().all(|n| *n >= 1), "{seen:?}");
    assert!(seen[3..].iter().sum::<usize>() <= 100, "{seen:?}");
    // While nothing comes, quiet lanes get most of the polls.
    let seen = count_polls(&mut schedule, 32 + 100, false);
    assert!(seen[3..].iter().all(|n| *n >= 16), "{seen:?}");
    // If more lanes are active than one turn polls, each gets its share.
    links.iter().for_each(|link| schedule.promote(link));
    let seen = count_polls(&mut schedule, 100, true);
    assert!(seen.iter().all(|n| *n == 32), "{seen:?}");
}

/// After any sequence of changes, each lane is at its recorded slot, and none is missing.
#[test]
fn lanes_come_and_go_in_any_order() {
    let (mut schedule, links) = schedule(40);
    let (mut there, mut chance) = (vec![true; 40], 1u64);
    for _ in 0..4000 {
        chance = chance.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let (n, what) = ((chance >> 33) as usize % 40, chance >> 60);
        match (what, there[n]) {
            (0..3, true) => (schedule.remove(&links[n]), there[n] = false).1,
            (0..3, false) => (schedule.push(n as u32, links[n].clone()), there[n] = true).1,
            (3..9, _) => schedule.demote(&links[n]),
            (9..15, _) => schedule.promote(&links[n]),
            _ => looks_at_all(&mut schedule, &there),
        }
        assert!(
            schedule
                .iter()
                .enumerate()
                .all(|(place, (id, link))| link.slot() == place && *id as usize == link.number && there[*id as usize])
        );
        assert_eq!(schedule.len(), there.iter().filter(|t| **t).count());
    }
}

fn looks_at_all(schedule: &mut PollSchedule, there: &[bool]) {
    let mut seen = vec![false; there.len()];
    for _ in 0..200 {
        let (active, silent) = schedule.turn();
        for k in 0..active + silent {
            let place = if k < active { schedule.next_active() } else { schedule.next_quiet() };
            seen[schedule[place].1.number] = true;
        }
        schedule.end_turn(false);
    }
    assert_eq!(seen, there);
}

/// A quiet peer is polled although another peer keeps sending without a pause.
#[test]
fn a_quiet_peer_is_still_polled() {
    let info = info("shm");
    let (mut to, mut busy) = (Side::open(&info), Side::open(&info));
    let mut silent: Vec<Side> = (0..20).map(|_| Side::open(&info)).collect();
    let mut got = vec![0u8; 8];
    for side in silent.iter_mut().chain([&mut busy]) {
        side.av.insert(to.name).unwrap();
        to.av.insert(side.name).unwrap();
        side.send(0, b"hello", 1, 1);
        to.recv(UNSPEC, &mut got, 1, 0, 2);
        both(&mut to, side, |s| s[0].take(2).is_some());
    }
    let mut chat = |to: &mut Side, turns: usize| {
        for _ in 0..turns {
            busy.send(0, b"again", 3, 3);
            busy.turn();
            to.recv(UNSPEC, &mut got, 3, 0, 3);
            to.turn();
            to.done.clear();
        }
    };
    chat(&mut to, 20_000);
    let mut late = vec![0u8; 8];
    for side in silent.iter_mut().step_by(5) {
        to.recv(UNSPEC, &mut late, 4, 0, 4);
        side.send(0, b"there", 4, 4);
        side.turn();
        let before = to.ep.stats().recvs;
        chat(&mut to, 22 * 32);
        assert!(to.ep.stats().recvs > before + 22 * 32 - 2 && late.starts_with(b"there"));
        late.fill(0);
    }
}
