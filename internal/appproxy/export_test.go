package appproxy

// Managers are the managers that the proxy chooses from.
func Managers(p *Proxy) []string { return p.managers.All() }

// Revision is that of a circuit as the proxy has it; 0 when it has none.
func Revision(p *Proxy, id string) int64 {
	if c := p.client.Table().ByID(id); c != nil {
		return c.Revision
	}
	return 0
}
