//! Transitions, as counted in COUNT.

use crate::model::class::LABELS;
use crate::model::header::State;

/// The state before a job is added and after it is removed.
const ABSENT: u32 = 0;

/// Room for states in an edge; five are used.
const STATES: u32 = 8;
/// The number of transitions between states, ignoring labels.
pub(crate) const STATE_EDGES: usize = 64;

/// Room for classes in an edge; three are used.
const CLASSES: u32 = 4;
/// The number of transitions between states and labels of one class.
const EDGES: u32 = STATES * STATES * (LABELS as u32) * (LABELS as u32);

/// The kind of a job in the counters: its state, and its tag.
pub(crate) type Kind = Option<(State, u8)>;

/// The number of a transition in COUNT.
pub(crate) fn edge(old: Kind, new: Kind) -> u32 {
    let labels = u32::from(LABELS);
    let tag = |kind: Kind| kind.map_or(0, |(_, tag)| u32::from(tag));
    let (label, class) = (
        |kind| tag(kind) % labels,
        |kind| tag(kind) / labels % CLASSES,
    );
    let states = STATES * state_number(old) + state_number(new);
    let labels = label(old) * labels + label(new);
    let classes = class(old) * CLASSES + class(new);
    classes * EDGES + labels * STATES * STATES + states
}

/// The number of a transition without labels and classes.
pub(crate) fn edge_of_states(edge: u32) -> usize {
    (edge % (STATES * STATES)) as usize
}

/// How one transition of this edge changes the number of jobs in `state`.
pub(crate) fn edge_adds(edge: u32, state: State) -> i64 {
    let state = state_number(Some((state, 0)));
    i64::from(edge % STATES == state) - i64::from(edge / STATES % STATES == state)
}

/// The kinds of job before and after a transition.
pub(crate) fn edge_ends(edge: u32) -> [Kind; 2] {
    let (labels, classes) = (edge % EDGES / (STATES * STATES), edge / EDGES);
    let kind = |state: u32, label: u32, class: u32| {
        let tag = u8::try_from(class * u32::from(LABELS) + label).unwrap_or_default();
        let state = match state {
            1 => State::Pending,
            2 => State::Running,
            3 => State::Finished,
            4 => State::Dead,
            _ => return None,
        };
        Some((state, tag))
    };
    let (old, new) = (edge / STATES % STATES, edge % STATES);
    let count = u32::from(LABELS);
    [
        kind(old, labels / count, classes / CLASSES % CLASSES),
        kind(new, labels % count, classes % CLASSES),
    ]
}

fn state_number(kind: Kind) -> u32 {
    match kind {
        None => ABSENT,
        Some((State::Pending, _)) => 1,
        Some((State::Running, _)) => 2,
        Some((State::Finished, _)) => 3,
        Some((State::Dead, _)) => 4,
    }
}
