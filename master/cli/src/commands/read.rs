//! Commands that show something, once or for ever.

use std::collections::BTreeMap;
use std::time::Duration;

use model::RoundId;
use model::client::{Answer, Read};
use model::view::{JobMore, JobRow};

use super::Context;
use crate::args::{JobReadArgs, NodeShowArgs, ReadArgs, RoundShowArgs, RoundsArgs};
use crate::client::unexpected;
use crate::contract::detail::JobDetailJson;
use crate::contract::job::{JOBS, JobJson, WhyJson};
use crate::contract::node::{NODES, NodeDetailJson, NodeJson};
use crate::contract::round::{ROUNDS, RoundDetailJson, RoundJson};
use crate::contract::status::StatusJson;
use crate::failure::{Exit, Failure};
use crate::grid::Style;
use crate::listing::{Choice, Format, Item, Kind, View, line, pretty};
use crate::page::{Block, FIELDS, Field, fields, render};
use crate::pages;

/// Time between two looks with `--watch`.
pub(crate) const POLL: Duration = Duration::from_secs(2);
/// On a terminal, jobs that ended longer ago are left out of `ps`.
const ENDED_SHOWN_MS: u64 = 86_400_000;

/// Lists things; `rows` turns the answer into them.
pub(super) async fn list<T: Item>(
    context: &mut Context<'_>,
    kind: &Kind<T>,
    args: &ReadArgs,
    read: Read,
    rows: impl Fn(Answer, &Style) -> Result<Vec<T>, Failure>,
) -> Result<(), Failure> {
    let view = args.view(context.format);
    let choice = kind.choose(&view)?;
    let answer = context.master.read(read.clone()).await?;
    let style = context.output.style(view.utc);
    let first = kind.select(rows(answer, &style)?, &choice, &style);
    if !view.watch {
        return context.output.data(&kind.render(&first, &choice, &view, &style));
    }
    let mut screen = Screen::start(context, kind, &choice, &view)?;
    screen.show(context, first)?;
    loop {
        tokio::time::sleep(POLL).await;
        let answer = context.master.read_patiently(read.clone(), context.output).await?;
        let style = context.output.style(view.utc);
        let rows = kind.select(rows(answer, &style)?, &choice, &style);
        screen.show(context, rows)?;
    }
}

/// What a watcher has seen so far.
pub(super) struct Screen<'a, T: 'static> {
    kind: &'a Kind<T>,
    choice: &'a Choice,
    view: &'a View,
    seen: BTreeMap<String, String>,
}

impl<'a, T: Item> Screen<'a, T> {
    pub(super) fn start(
        context: &mut Context<'_>,
        kind: &'a Kind<T>,
        choice: &'a Choice,
        view: &'a View,
    ) -> Result<Self, Failure> {
        let style = context.output.style(view.utc);
        if redraws(view, &style) {
            context.output.clear()?;
        } else if view.header && matches!(view.format, Format::Table | Format::Wide) {
            context.output.data(&kind.head(choice, &style))?;
        }
        Ok(Self { kind, choice, view, seen: BTreeMap::new() })
    }

    pub(super) fn show(&mut self, context: &mut Context<'_>, rows: Vec<T>) -> Result<(), Failure> {
        let style = context.output.style(self.view.utc);
        if redraws(self.view, &style) {
            let text = self.kind.render(&rows, self.choice, self.view, &style);
            return context.output.redraw(&text);
        }
        let changed = changes(&mut self.seen, &rows, self.view.format.is_json());
        for change in changed {
            let text = match change {
                Change::Row(row) => self.kind.change(row, self.choice, self.view, &style),
                Change::Gone(id) => line(&Removed { schema: "optimus.removed/1", id }),
            };
            context.output.data(&text)?;
        }
        Ok(())
    }
}

const fn redraws(view: &View, style: &Style) -> bool {
    style.terminal && matches!(view.format, Format::Table | Format::Wide)
}

/// `optimus.removed/1`: a watched thing is no longer in the list.
#[derive(serde::Serialize)]
struct Removed {
    schema: &'static str,
    id: String,
}

enum Change<'a, T> {
    Row(&'a T),
    Gone(String),
}

/// What is new or different since the last look, and with `gone` what is no more.
fn changes<'a, T: Item>(
    seen: &mut BTreeMap<String, String>,
    rows: &'a [T],
    gone: bool,
) -> Vec<Change<'a, T>> {
    let mut changed = Vec::new();
    let mut now = BTreeMap::new();
    for row in rows {
        let (key, state) = (row.key(), line(&row.settled()));
        if seen.get(&key) != Some(&state) {
            changed.push(Change::Row(row));
        }
        now.insert(key, state);
    }
    let before = std::mem::replace(seen, now);
    if gone {
        let left = before.into_keys().filter(|key| !seen.contains_key(key));
        changed.extend(left.map(Change::Gone));
    }
    changed
}

/// What a page shows, and more of it that only newer masters tell.
struct Asked {
    read: Read,
    more: Option<Read>,
}

impl From<Read> for Asked {
    fn from(read: Read) -> Self {
        Self { read, more: None }
    }
}

/// Shows one thing on a page; `build` lays it out.
async fn page<T: Item>(
    context: &mut Context<'_>,
    args: &ReadArgs,
    asked: impl Into<Asked>,
    item: impl Fn(Answer, Option<Answer>) -> Result<T, Failure>,
    build: impl Fn(&T, &Style) -> Vec<Block>,
) -> Result<(), Failure> {
    let view = args.view(context.format);
    let choice = FIELDS.choose(&view)?;
    let Asked { read, more } = asked.into();
    let mut seen = BTreeMap::new();
    let mut first = true;
    loop {
        let answer = if first {
            context.master.read(read.clone()).await?
        } else {
            context.master.read_patiently(read.clone(), context.output).await?
        };
        let more = match &more {
            Some(more) => context.master.read_more(more.clone()).await?,
            None => None,
        };
        let item = item(answer, more)?;
        let style = context.output.style(view.utc);
        if !view.watch {
            let text = page_text(&item, &build, &choice, &view, &style);
            return context.output.data(&text);
        }
        if redraws(&view, &style) {
            if first {
                context.output.clear()?;
            }
            context.output.redraw(&page_text(&item, &build, &choice, &view, &style))?;
        } else if matches!(view.format, Format::Table | Format::Wide) {
            for text in changed_fields(&mut seen, &item, &build, (&choice, &view, &style)) {
                context.output.data(&text)?;
            }
        } else if !changes(&mut seen, std::slice::from_ref(&item), false).is_empty() {
            context.output.data(&match view.format {
                Format::Name => crate::text::escape(&item.key()) + "\n",
                Format::Table | Format::Wide | Format::Json | Format::Jsonl => line(&item),
            })?;
        }
        first = false;
        tokio::time::sleep(POLL).await;
    }
}

fn page_text<T: Item>(
    item: &T,
    build: &impl Fn(&T, &Style) -> Vec<Block>,
    choice: &Choice,
    view: &View,
    style: &Style,
) -> String {
    match view.format {
        Format::Json => pretty(item) + "\n",
        Format::Jsonl => line(item),
        Format::Name => crate::text::escape(&item.key()) + "\n",
        Format::Table | Format::Wide => {
            let blocks = build(item, style);
            let chosen =
                !(view.columns.is_empty() && view.sort.is_empty() && view.filters.is_empty());
            if style.terminal && !chosen {
                return render(&blocks, style, view.format == Format::Table);
            }
            let rows = FIELDS.select(fields(&blocks, style), choice, style);
            FIELDS.render(&rows, choice, view, style)
        }
    }
}

/// Lines of a page whose values are new; what only grows with time is none.
fn changed_fields<T: Item>(
    seen: &mut BTreeMap<String, String>,
    item: &T,
    build: &impl Fn(&T, &Style) -> Vec<Block>,
    (choice, view, style): (&Choice, &View, &Style),
) -> Vec<String> {
    let exact = Style { utc: true, ..*style };
    let shown = |field: &Field| field.value.as_ref().map(|cell| cell.show(&exact));
    let settled: BTreeMap<String, String> = fields(&build(&item.settled(), &exact), &exact)
        .into_iter()
        .map(|field| (field.field.clone(), shown(&field).unwrap_or_default()))
        .collect();
    let now = FIELDS.select(fields(&build(item, style), style), choice, style);
    let changed = now.iter().filter(|field| seen.get(&field.field) != settled.get(&field.field));
    let lines = changed.map(|field| FIELDS.change(field, choice, view, style)).collect();
    *seen = settled;
    lines
}

pub(super) async fn ps(
    context: &mut Context<'_>,
    args: &ReadArgs,
    all: bool,
) -> Result<(), Failure> {
    let table = matches!(context.format, Format::Table | Format::Wide);
    let hides = table && context.output.terminal && !all && args.filters.is_empty();
    let hidden = std::cell::Cell::new(0);
    list(context, &JOBS, args, Read::Jobs, |answer, style| {
        let Answer::Jobs(rows) = answer else { return Err(unexpected(&answer)) };
        let recent = |row: &&JobRow| {
            !hides || row.ended.is_none_or(|at| style.now.0 < at.0.saturating_add(ENDED_SHOWN_MS))
        };
        let shown: Vec<JobJson> = rows.iter().filter(recent).map(JobJson::from).collect();
        hidden.set(rows.len() - shown.len());
        Ok(shown)
    })
    .await?;
    if hidden.get() > 0 {
        let jobs = crate::text::count(hidden.get(), "job", "jobs");
        context.output.talk(&format!("{jobs} that ended over a day ago: --all lists them too"));
    }
    Ok(())
}

pub(super) async fn show(context: &mut Context<'_>, args: &JobReadArgs) -> Result<(), Failure> {
    let item = |answer, more| {
        let Answer::Job(detail) = answer else { return Err(unexpected(&answer)) };
        let more = match more {
            Some(Answer::JobMore(more)) => *more,
            Some(other) => return Err(unexpected(&other)),
            None => JobMore::default(),
        };
        Ok(JobDetailJson::new(&detail, &more))
    };
    let job = args.job;
    let asked = Asked { read: Read::Job { job }, more: Some(Read::JobMore { job }) };
    page(context, &args.read, asked, item, |job, _| pages::job::show(job)).await
}

pub(super) async fn why(context: &mut Context<'_>, args: &JobReadArgs) -> Result<(), Failure> {
    let item = |answer, _| {
        let Answer::Why(why) = answer else { return Err(unexpected(&answer)) };
        Ok(WhyJson::from(&*why))
    };
    let read = Read::Why { job: args.job };
    let build = |why: &WhyJson, style: &Style| pages::job::why(why, style.now, style.utc);
    page(context, &args.read, read, item, build).await
}

pub(super) async fn rounds(context: &mut Context<'_>, args: &RoundsArgs) -> Result<(), Failure> {
    let read = Read::Rounds { limit: args.limit };
    list(context, &ROUNDS, &args.read, read, |answer, _| {
        let Answer::Rounds(rows) = answer else { return Err(unexpected(&answer)) };
        Ok(rows.iter().map(RoundJson::from).collect())
    })
    .await
}

pub(super) async fn round(context: &mut Context<'_>, args: &RoundShowArgs) -> Result<(), Failure> {
    let round = match args.round {
        Some(round) => round,
        None => last_round(context).await?,
    };
    let item = |answer, _| {
        let Answer::Round(detail) = answer else { return Err(unexpected(&answer)) };
        Ok(RoundDetailJson::from(&*detail))
    };
    page(context, &args.read, Read::Round { round }, item, |round, _| pages::cluster::round(round))
        .await
}

async fn last_round(context: &mut Context<'_>) -> Result<RoundId, Failure> {
    let answer = context.master.read(Read::Rounds { limit: 1 }).await?;
    let Answer::Rounds(rows) = answer else { return Err(unexpected(&answer)) };
    rows.iter().map(|row| row.id).max().ok_or_else(|| {
        Failure::new(Exit::NotFound, "there was no round yet", "submit a job: it asks for one")
    })
}

pub(super) async fn nodes(context: &mut Context<'_>, args: &ReadArgs) -> Result<(), Failure> {
    list(context, &NODES, args, Read::Nodes, |answer, _| {
        let Answer::Nodes(rows) = answer else { return Err(unexpected(&answer)) };
        Ok(rows.iter().map(NodeJson::from).collect())
    })
    .await
}

pub(super) async fn node(context: &mut Context<'_>, args: &NodeShowArgs) -> Result<(), Failure> {
    let item = |answer, more| {
        let Answer::Node(detail) = answer else { return Err(unexpected(&answer)) };
        let more = match more {
            Some(Answer::NodeMore(more)) => Some(more),
            Some(other) => return Err(unexpected(&other)),
            None => None,
        };
        Ok(NodeDetailJson::new(&detail, more.as_deref()))
    };
    let node = args.node.clone();
    let more = Some(Read::NodeMore { node: node.clone() });
    let asked = Asked { read: Read::Node { node }, more };
    page(context, &args.read, asked, item, |node, _| pages::cluster::node(node)).await
}

pub(super) async fn status(context: &mut Context<'_>, args: &ReadArgs) -> Result<(), Failure> {
    let item = |answer, _| {
        let Answer::Status(status) = answer else { return Err(unexpected(&answer)) };
        Ok(StatusJson::from(&*status))
    };
    page(context, args, Read::Status, item, |status, _| pages::cluster::status(status)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, serde::Serialize)]
    struct Thing {
        id: &'static str,
        state: u32,
        age: u32,
    }

    impl Item for Thing {
        fn key(&self) -> String {
            self.id.to_owned()
        }

        fn settled(&self) -> Self {
            Self { age: 0, ..self.clone() }
        }
    }

    fn ids(changes: &[Change<'_, Thing>]) -> Vec<String> {
        let id = |change: &Change<'_, Thing>| match change {
            Change::Row(row) => row.id.to_owned(),
            Change::Gone(id) => format!("-{id}"),
        };
        changes.iter().map(id).collect()
    }

    #[test]
    fn a_watcher_sees_changes_and_no_mere_ageing() {
        let mut seen = BTreeMap::new();
        let thing = |id, state, age| Thing { id, state, age };
        let first = [thing("a", 1, 0), thing("b", 1, 0)];
        assert_eq!(ids(&changes(&mut seen, &first, true)), ["a", "b"]);
        let older = [thing("a", 1, 5), thing("b", 1, 5)];
        assert_eq!(ids(&changes(&mut seen, &older, true)), Vec::<String>::new());
        let next = [thing("b", 2, 7), thing("c", 1, 0)];
        assert_eq!(ids(&changes(&mut seen, &next, true)), ["b", "c", "-a"]);
    }
}
