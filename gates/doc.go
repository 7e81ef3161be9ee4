// Package gates handles the activation heights that are compiled into the node: which there are, where a new one may be put,
// and whether a build may replace another one while the chain stands at some height.
//
// A gate is a consensus rule that every node switches on at the same height, so that a build can be rolled node by node. That
// only holds while the height lies ahead of the whole roll and never changes once the chain has come near it: a moved gate
// makes the blocks in between replay under the other rule, and a rule born active splits a fleet that is half rolled. The
// heights are read from core/qnet-state/src/feature_gates.rs of the node's repository as the compiler would read them.
//
//	old, err := gates.Load(ctx, "qnet@6dd7094")   // a folder, folder@commit, or the file itself
//	report := gates.Check(old, now, tip)
//	if !report.OK() { … }
//
// Load reads; everything else is a pure function of sets and a tip.
package gates
