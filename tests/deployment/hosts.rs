//! What the story relies on: that the hosts do what real ones would.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use harness::hosts::{Direction, Plan, Site};
use harness::process::talk;
use harness::wait::{self, Clock};

fn reaches(site: &Site, from: &str, to: &str) -> Result<bool> {
    let address = &site.host(to).address;
    let probe = format!(
        "python3 -c 'import socket; socket.create_connection((\"{address}\", 22), 1).recv(4)'"
    );
    Ok(site.host(from).ssh_output(&probe)?.status.success())
}

#[test]
fn hosts_boot_and_can_be_cut_frozen_and_killed() -> Result<()> {
    let clock = Clock::start();
    let mut site = Site::start(&[Plan::new("n1"), Plan::new("n2")])?;
    talk(&format!("two hosts boot in {:.1} s", clock.elapsed().as_secs_f64()));
    ensure!(reaches(&site, "n1", "n2")? && reaches(&site, "n2", "n1")?, "no network");
    site.cut("n1", Direction::Both)?;
    ensure!(!reaches(&site, "n1", "n2")? && !reaches(&site, "n2", "n1")?, "not cut");
    site.heal()?;
    wait::until("the network", Duration::from_secs(10), || {
        Ok(reaches(&site, "n1", "n2")?.then_some(()))
    })?;
    let boot_and_machine = |site: &Site| -> Result<(String, String)> {
        let ids = site.host("n1").ssh("cat /proc/sys/kernel/random/boot_id /etc/machine-id")?;
        let (boot, machine) = ids.split_once('\n').context("two lines")?;
        Ok((boot.to_owned(), machine.to_owned()))
    };
    let before = boot_and_machine(&site)?;
    site.host("n1").ssh("touch /root/kept /srv/checkpoints/seen; sync")?;
    ensure!(site.shared.join("seen").is_file(), "the shared folder is not shared");
    let clock = Clock::start();
    site.host_mut("n1").power_off()?;
    site.host_mut("n1").power_on()?;
    site.host_mut("n1").wait_ready()?;
    talk(&format!("killed and booted again in {:.1} s", clock.elapsed().as_secs_f64()));
    site.host("n1").ssh("ls /root/kept")?;
    let after = boot_and_machine(&site)?;
    ensure!(before.0 != after.0 && before.1 == after.1, "{before:?} became {after:?}");
    site.host("n2").freeze()?;
    ensure!(!reaches(&site, "n1", "n2")?, "not frozen");
    site.host("n2").thaw()?;
    ensure!(reaches(&site, "n1", "n2")?, "not thawed");
    site.host_mut("n2").change_address("10.77.0.99")?;
    let addresses = site.host("n2").ssh("ip -brief address show host0")?;
    ensure!(addresses.contains(".99/24") && !addresses.contains(".11/24"), "has {addresses}");
    site.succeeded();
    Ok(())
}
