// Package cutover changes a whole fleet at once: a halt at a height and the
// release after it, and what else cannot be done node by node.
//
// A cut-over is a Plan of phases over all its hosts: prepare, hold, go, verify,
// release. A phase begins only when every host has finished the one before; else
// the operation holds there, with who is missing. Each phase names what undoes
// it, and one marks the point of no return. What a kind of cut-over does in a
// phase is a Procedure; Run takes it through the phases and their barriers, and
// back. Procedures settle by looking: each phase can be begun again from wherever
// the fleet stands, by another process that has the same journal and nothing else.
//
// Deciding is pure and apart from acting: the plan, the judgement of a barrier
// (Judge) and what is to be done with one host next (judgeHalt) are functions of
// readings. Steps, lease, fences and milestones are those of package rolling.
package cutover
