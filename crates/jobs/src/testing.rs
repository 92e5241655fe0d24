//! What shows that the queue is right: the rules once more, random scripts and a simulation of whole
//! fleets that compare the queue with them, races, golden scripts, and the mistakes that each of these
//! has to find. Only [`planted`] is compiled outside of tests, and costs nothing there.

#[cfg(test)]
mod conflicts;
#[cfg(test)]
mod full;
#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod geometry;
#[cfg(test)]
mod golden;
#[cfg(test)]
mod mistake;
#[cfg(test)]
mod model;
pub(crate) mod planted;
#[cfg(test)]
mod races;
#[cfg(test)]
mod rules;
#[cfg(test)]
mod simulation;
