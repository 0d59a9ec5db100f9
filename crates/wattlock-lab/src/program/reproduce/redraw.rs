//! `wattlock lab reproduce --redraw`: the page and the pictures of a kept run. Its grid is the one that the CSV names;
//! nothing of this machine or this call is in it.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use clap::ValueEnum;
use wattlock_door::{Error, one_line};
use wattlock_shell::setup::Choice;

use super::csv::{self, Identity, Line};
use super::grid::{Extent, Figure, Paper, grid};
use super::page::Outcome;
use super::{Command, Places, keys, retain, withhold};

/// What a kept run was of, as [`Identity::grid`] says.
#[derive(Debug, PartialEq, Eq)]
struct Kept<'a> {
    full: bool,
    /// `None`: all.
    figure: Option<&'a str>,
    /// Its papers, with the device that was emulated for each.
    papers: Vec<(Paper, Option<&'a str>)>,
}

impl Kept<'_> {
    fn read(grid: &str) -> Option<Kept<'_>> {
        let (head, devices) = grid.split_once(", emulated ")?;
        let devices = devices.strip_suffix(", outside meter").unwrap_or(devices);
        let (head, extent) = head.rsplit_once(' ')?;
        let (papers, figure) = head.split_once(' ')?;
        let full = match extent {
            "full" => true,
            "default" => false,
            _ => return None,
        };
        let papers = match papers {
            "all" => Paper::value_variants().to_vec(),
            name => vec![Paper::from_str(name, false).ok()?],
        };
        let devices: Vec<&str> = match papers.len() {
            1 => vec![devices],
            _ => devices.split(' ').collect(),
        };
        if devices.len() != papers.len() {
            return None;
        }
        let devices = devices.into_iter().map(|one| Some(one).filter(|one| *one != "none"));
        let figure = Some(figure).filter(|figure| *figure != "all figures");
        Some(Kept { full, figure, papers: papers.into_iter().zip(devices).collect() })
    }
}

/// Draws a kept run. Points that the grid has no more are left out, and the page says which figures had some.
pub fn run(command: &Command, choice: &Choice) -> Result<()> {
    let refused = |why: String| Error::Usage(why);
    ensure!(
        command.report.is_some() || command.pictures.is_some(),
        refused("--redraw writes nothing: --report or --pictures says where to".to_owned())
    );
    ensure!(
        choice.emulate.is_none(),
        refused("--redraw has the devices of its CSV: leave --emulate out".to_owned())
    );
    let Some(path) = &command.csv else {
        return Err(refused("--redraw draws what --csv names".to_owned()).into());
    };
    let (identity, lines) = csv::kept(path)?;
    let Some(kept) = Kept::read(&identity.grid) else {
        return Err(refused(format!("{}: no grid is \"{}\"", one_line(path), identity.grid)).into());
    };
    draw(command, &figures(command, &identity, &kept, &lines)?, &identity, lines)
}

/// The grid of that run. Of other papers, which may be asked for, it has no device and no point.
fn figures(command: &Command, identity: &Identity, kept: &Kept<'_>, lines: &[Line]) -> Result<Vec<Figure>> {
    let threads = identity.threads();
    let threads =
        threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, std::num::NonZero::get));
    // A grid without an emulated device does not say whether there was a GPU; its points do.
    let gpu = lines.iter().any(|line| line.point.split(' ').any(|key| key == "machine=gpu"));
    let mut all = Vec::new();
    for paper in &command.paper.0 {
        let own = kept.papers.iter().find(|(known, _)| known == paper);
        let emulated = own.and_then(|(_, device)| *device);
        let machine = match (emulated, gpu) {
            (Some(_), _) => "k20m",
            (None, true) => "gpu",
            (None, false) => "cpu",
        };
        let mut figures = grid(*paper, Extent { full: kept.full, threads, machine })?;
        if let (Some(_), Some(figure)) = (own, kept.figure) {
            figures.retain(|one| one.names.contains(&figure));
        }
        figures.iter_mut().for_each(|figure| withhold(figure, emulated, gpu));
        all.extend(figures);
    }
    retain(&mut all, command.figure.as_deref())?;
    Ok(all)
}

fn draw(command: &Command, figures: &[Figure], identity: &Identity, lines: Vec<Line>) -> Result<()> {
    let known = keys(figures);
    let (lines, gone): (Vec<Line>, Vec<Line>) =
        lines.into_iter().partition(|line| known.contains(&line.key().map(str::to_owned)));
    let gone: BTreeSet<String> =
        gone.iter().map(|line| format!("{} {}", line.paper.to_uppercase(), line.figure)).collect();
    let gone = gone.into_iter().collect::<Vec<_>>().join(", ");
    let remark = format!("Points that this program's grid has no more are left out: {gone}.");
    let outcome = Outcome { figures, lines: &lines, commit: &identity.commit, machine: &identity.machine };
    Places::begin(command)?.write(&outcome, (!gone.is_empty()).then_some(remark.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grid_is_read_as_a_run_writes_it() {
        let read = |grid| Kept::read(grid).unwrap();
        let all = read("all all figures default, emulated eeca-soc none k20m dh8970 none");
        assert_eq!((all.full, all.figure, all.papers.len()), (false, None, 5));
        assert_eq!((all.papers[0], all.papers[1].1), ((Paper::Eeca, Some("eeca-soc")), None));
        let one = read("aca-sds figure3 full, emulated a model.toml, outside meter");
        let wanted =
            Kept { full: true, figure: Some("figure3"), papers: vec![(Paper::AcaSds, Some("a model.toml"))] };
        assert_eq!(one, wanted);
        for grid in [
            "",
            "all",
            "eep all figures some, emulated none",
            "all all figures full, emulated none",
            "no full, emulated x",
            "full, emulated",
        ] {
            assert_eq!(Kept::read(grid), None, "{grid}");
        }
    }
}
