package storage

import "github.com/prometheus/client_golang/prometheus"

// figures shows volumes and their tasks. What a volume does not tell is absent.
type figures struct{ p *Proxy }

var (
	volumeLabels = []string{"proxy", "volume"}
	usableDesc   = prometheus.NewDesc("berth_storage_volume_usable", "1 while the volume can be used, else 0.", volumeLabels, nil)
	capacityDesc = prometheus.NewDesc("berth_storage_volume_capacity_bytes", "Size of the volume's file system.", volumeLabels, nil)
	usedDesc     = prometheus.NewDesc("berth_storage_volume_used_bytes", "Used bytes of the volume's file system.", volumeLabels, nil)
	tasksDesc    = prometheus.NewDesc("berth_storage_tasks", "Background tasks of the volume: running in this process, and waiting.",
		append(volumeLabels, "state"), nil)
	reapedDesc  = prometheus.NewDesc("berth_storage_reaped_entries_total", "Entries of trash that this process removed.", volumeLabels, nil)
	expiredDesc = prometheus.NewDesc("berth_storage_expired_uploads_total", "Unfinished uploads that this process removed.", volumeLabels, nil)
)

func (f figures) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{usableDesc, capacityDesc, usedDesc, tasksDesc, reapedDesc, expiredDesc} {
		ch <- d
	}
}

func (f figures) Collect(ch chan<- prometheus.Metric) {
	for _, v := range f.p.Volumes() {
		tell := func(d *prometheus.Desc, kind prometheus.ValueType, n float64, more ...string) {
			ch <- prometheus.MustNewConstMetric(d, kind, n, append([]string{f.p.cfg.Proxy, v.Name}, more...)...)
		}
		if v.Problem != "" {
			tell(usableDesc, prometheus.GaugeValue, 0)
		} else {
			tell(usableDesc, prometheus.GaugeValue, 1)
			tell(capacityDesc, prometheus.GaugeValue, float64(v.CapacityBytes))
			tell(usedDesc, prometheus.GaugeValue, float64(v.UsedBytes))
		}
		t := f.p.tasks.Figures(v.Name)
		tell(tasksDesc, prometheus.GaugeValue, float64(t.Running), "running")
		tell(tasksDesc, prometheus.GaugeValue, float64(t.Waiting), "waiting")
		tell(reapedDesc, prometheus.CounterValue, float64(t.Reaped))
		tell(expiredDesc, prometheus.CounterValue, float64(t.Expired))
	}
}
