//! What shows that the queue is right: planted mistakes, checks of every conflicting read, races, golden scripts and a
//! simulation of whole fleets. Only [`planted`] is known outside of tests, and there it costs nothing.

#[cfg(test)]
pub(crate) mod bites;
#[cfg(test)]
mod fuzz;
#[cfg(test)]
pub(crate) mod golden;
#[cfg(test)]
pub(crate) mod model_bites;
pub(crate) mod planted;
#[cfg(test)]
pub(crate) mod races;
#[cfg(test)]
pub(crate) mod simulation;
