//! Transitions, as counted in COUNT.

use crate::model::header::State;

/// The state before a job is added and after it is removed.
const ABSENT: u16 = 0;

/// The number of labels; 0 is none.
pub(crate) const LABELS: u8 = 16;

/// Room for states in an edge; five are used.
const STATES: u16 = 8;
/// The number of transitions between states, ignoring labels.
pub(crate) const STATE_EDGES: usize = 64;

/// The kind of a job in the counters: its state, and the label of its data.
pub(crate) type Kind = Option<(State, u8)>;

/// The number of a transition in COUNT.
pub(crate) fn edge(old: Kind, new: Kind) -> u16 {
    let label = |kind: Kind| kind.map_or(0, |(_, label)| u16::from(label % LABELS));
    let states = STATES * state_number(old) + state_number(new);
    (label(old) * u16::from(LABELS) + label(new)) * STATES * STATES + states
}

/// The number of a transition without its labels.
pub(crate) fn edge_of_states(edge: u16) -> usize {
    usize::from(edge % (STATES * STATES))
}

/// How one transition of this edge changes the number of jobs in `state`.
pub(crate) fn edge_adds(edge: u16, state: State) -> i64 {
    let state = state_number(Some((state, 0)));
    i64::from(edge % STATES == state) - i64::from(edge / STATES % STATES == state)
}

/// The kinds of job before and after a transition.
pub(crate) fn edge_ends(edge: u16) -> [Kind; 2] {
    let labels = edge / (STATES * STATES);
    let kind = |state: u16, label: u16| {
        let label = u8::try_from(label).unwrap_or_default();
        let state = match state {
            1 => State::Pending,
            2 => State::Running,
            3 => State::Finished,
            4 => State::Dead,
            _ => return None,
        };
        Some((state, label))
    };
    [
        kind(edge / STATES % STATES, labels / u16::from(LABELS)),
        kind(edge % STATES, labels % u16::from(LABELS)),
    ]
}

fn state_number(kind: Kind) -> u16 {
    match kind {
        None => ABSENT,
        Some((State::Pending, _)) => 1,
        Some((State::Running, _)) => 2,
        Some((State::Finished, _)) => 3,
        Some((State::Dead, _)) => 4,
    }
}
