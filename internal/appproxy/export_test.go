package appproxy

// Revision is that of a circuit as the proxy has it; 0 when it has none.
func Revision(p *Proxy, id string) int64 {
	if c := p.client.Table().ByID(id); c != nil {
		return c.Revision
	}
	return 0
}
