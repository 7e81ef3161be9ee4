// Package rolling replaces the container of each node of a fleet, one node at
// a time, and proves that every node is back in the chain before the next one
// is touched.
//
// New decides a Plan from a view of the fleet and what the host agents said;
// Preflight lists the checks for and against running it; Runner runs it in
// journaled steps under a lease; Reentry judges the milestones M0 to M4 of a
// node that was replaced. Deciding and judging are pure.
package rolling
