package restart

// WayOf says how one host can be brought to macroblock k, by what it showed when it was gathered (DESIGN.md 3.7).
func WayOf(f HostFinding, k uint64) HostWay {
	way, reason := wayOf(&f, k)
	return HostWay{ID: f.ID, CertifiedFloor: floorOf(&f), Way: way, Reason: reason}
}
