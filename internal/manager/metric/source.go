package metric

import (
	"context"
	"math"
	"net/url"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/wire/node"
)

// Kind says whose points a Source is asked for.
type Kind int

// Kernels are named by their ids, agents by theirs.
const (
	OfKernels Kind = iota
	OfAgents
)

// Source tells points, which may lie elsewhere than in our tables. It decides nothing about who may see them.
type Source interface {
	// Points are those of some, by their ids, or of all added up, by "". Steps of which nothing is known are left out.
	Points(ctx context.Context, of Kind, ids []string, r Range, sum bool) (map[string][]Point, error)
}

// PrometheusConfig names a Prometheus that stands in for our tables.
type PrometheusConfig struct {
	// URL is where its API is, such as https://prometheus.example.org; what it scrapes are the managers with metrics.export. Empty: the
	// history comes from our tables.
	URL string `config:"url"`
	// TokenFile holds a bearer token; it is read anew for each request. Empty: none is sent.
	TokenFile string
}

func (c PrometheusConfig) validate() error {
	if c.URL == "" {
		if c.TokenFile != "" {
			return fault.Invalidf("metrics.prometheus.token_file is set, and no metrics.prometheus.url").WithNext("set both, or neither")
		}
		return nil
	}
	u, err := url.Parse(c.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return fault.Invalidf("metrics.prometheus.url is no address of a Prometheus").
			WithNext("write it as https://prometheus.example.org, without a user, a query and a fragment")
	}
	if u.Scheme == "http" && c.TokenFile != "" && u.Hostname() != "localhost" && u.Hostname() != "127.0.0.1" && u.Hostname() != "::1" {
		return fault.Invalidf("metrics.prometheus would send its token in the clear").WithNext("use https, or leave the token out")
	}
	return nil
}

// Add adds what was measured under a name to a point: to what is there, where several are added up. Values that are no numbers, or
// negative, were not measured; names that history does not keep are left out.
func (p *Point) Add(name string, v float64) {
	if math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
		return
	}
	add := func(to **float64) {
		if *to == nil {
			*to = new(float64)
		}
		**to += v
	}
	switch name {
	case node.MetricCPUUtil:
		add(&p.CPU)
	case node.MetricMem:
		add(&p.Mem)
	case node.MetricIORead:
		add(&p.IORead)
	case node.MetricIOWrite:
		add(&p.IOWrite)
	case node.MetricNetRx:
		add(&p.NetRx)
	case node.MetricNetTx:
		add(&p.NetTx)
	default:
		if _, known := p.Devices[name]; !device(name) || len(p.Devices) == maxDevices && !known {
			return
		}
		if p.Devices == nil {
			p.Devices = map[string]float64{}
		}
		p.Devices[name] += v
	}
}
