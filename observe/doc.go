// Package observe looks at a fleet and says what it sees: one view of all nodes
// within a block time or two, a verdict for each node and for the fleet with the
// reasons, checks with three answers, and who would vote if a node were stopped.
//
// Looking and judging are apart. Observe gathers readings; Judge, CountVoters,
// NodeChecks and Fold are pure, so that the same readings always give the same
// words. Nothing here changes a host.
//
// The rules rest on what went wrong before: heights alone hid a fork, a node that
// hears nobody calls itself synced, a health route hung while the node was fine,
// and a number that could not be read was taken for zero. A reading that is
// missing is nil, and a nil never makes anything healthy.
package observe
