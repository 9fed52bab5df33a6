package signature

// LimitMemory bounds the memory of a guard.
func LimitMemory(g *Guard, most int) { g.most = most }

// Remembered counts what a guard remembers.
func Remembered(g *Guard) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.known)
}
