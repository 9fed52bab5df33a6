package data

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	opened  *prometheus.CounterVec
	refused *prometheus.CounterVec
	open    prometheus.Gauge
	lent    prometheus.Gauge
	bytes   *prometheus.CounterVec
}

func newMetrics(r prometheus.Registerer) *metrics {
	m := &metrics{
		opened: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_agent_tunnels_total",
			Help: "Connections to apps that ended (way remote) or were given to an app proxy of this host (way local).",
		}, []string{"way"}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_agent_tunnels_refused_total", Help: "Connections to apps that were not opened, by kind of failure.",
		}, []string{"kind"}),
		open: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "berth_agent_tunnels_open", Help: "Connections to apps that are being opened or carried by this process.",
		}),
		lent: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "berth_agent_tunnels_lent", Help: "Sockets of apps that app proxies of this host have of this agent.",
		}),
		bytes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_agent_tunnel_bytes_total", Help: "Bytes carried to (direction in) and from (direction out) apps.",
		}, []string{"direction"}),
	}
	if r != nil {
		r.MustRegister(m.opened, m.refused, m.open, m.lent, m.bytes)
	}
	return m
}

func (m *metrics) done(remote bool, in, out int64) {
	way := "local"
	if remote {
		way = "remote"
	}
	m.opened.WithLabelValues(way).Inc()
	m.bytes.WithLabelValues("in").Add(float64(in))
	m.bytes.WithLabelValues("out").Add(float64(out))
}
