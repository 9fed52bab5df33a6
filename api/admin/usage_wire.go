package admin

// UsageProject is what a project held within a period, with its kernels: an item of GET /resource/usage/month and /period. What was not
// measured is null.
type UsageProject struct {
	Domain       string        `json:"domain_name"`
	ID           string        `json:"g_id"`
	Name         string        `json:"g_name"`
	CPU          float64       `json:"g_cpu_allocated"` // cores of all kernels
	CPUUsed      *float64      `json:"g_cpu_used"`
	Mem          int64         `json:"g_mem_allocated"` // bytes
	MemUsed      *int64        `json:"g_mem_used"`
	SharedMemory int64         `json:"g_shared_memory"`
	Disk         *int64        `json:"g_disk_allocated"`
	DiskUsed     *int64        `json:"g_disk_used"`
	IORead       *int64        `json:"g_io_read"`
	IOWrite      *int64        `json:"g_io_write"`
	DeviceTypes  []string      `json:"g_device_type"`
	SMP          *int          `json:"g_smp"`
	GPUMem       *int64        `json:"g_gpu_mem_allocated"`
	GPU          float64       `json:"g_gpu_allocated"` // units of all slots but cpu and mem
	Kernels      []UsageKernel `json:"c_infos"`
	// Newer clients read these of a period.
	ProjectID   string     `json:"project_id"`
	ProjectName string     `json:"project_name"`
	Total       UsageTotal `json:"total_usage"`
}

// UsageTotal is what all kernels of a project used; what was not measured is null.
type UsageTotal struct {
	CPUUsed     *float64 `json:"cpu_used"`
	MemUsed     *int64   `json:"mem_used"`
	IORead      *int64   `json:"io_read"`
	IOWrite     *int64   `json:"io_write"`
	DeviceTypes []string `json:"device_type"`
	GPUMem      *int64   `json:"gpu_mem_allocated"`
	GPU         float64  `json:"gpu_allocated"`
}

// UsageKernel is what a kernel held within a period.
type UsageKernel struct {
	ID            string         `json:"id"`
	Session       string         `json:"session_id"`
	ContainerID   *string        `json:"container_id"`
	Domain        string         `json:"domain_name"`
	ProjectID     string         `json:"group_id"`
	ProjectName   string         `json:"group_name"`
	Name          string         `json:"name"`
	AccessKey     string         `json:"access_key"`
	Email         string         `json:"email"`
	FullName      *string        `json:"full_name"`
	Agent         string         `json:"agent"`
	CPU           float64        `json:"cpu_allocated"`
	CPUUsed       *float64       `json:"cpu_used"`
	Mem           int64          `json:"mem_allocated"`
	MemUsed       *int64         `json:"mem_used"`
	SharedMemory  int64          `json:"shared_memory"`
	Disk          *int64         `json:"disk_allocated"`
	DiskUsed      *int64         `json:"disk_used"`
	IORead        *int64         `json:"io_read"`
	IOWrite       *int64         `json:"io_write"`
	UsedTime      string         `json:"used_time"` // within the period: "1 day, 2:03:04.500000"
	UsedDays      int            `json:"used_days"` // days begun
	DeviceTypes   []string       `json:"device_type"`
	SMP           *int           `json:"smp"`
	GPUMem        *int64         `json:"gpu_mem_allocated"`
	GPU           float64        `json:"gpu_allocated"`
	Hosts         []string       `json:"nfs"`
	ImageName     string         `json:"image_name"`
	CreatedAt     string         `json:"created_at"`
	TerminatedAt  string         `json:"terminated_at"` // "" while it runs
	Status        *string        `json:"status"`
	StatusInfo    *string        `json:"status_info"`
	StatusChanged *string        `json:"status_changed"`
	StatusHistory map[string]any `json:"status_history"`
	ClusterMode   *string        `json:"cluster_mode"`
}

// UsageBin is what was held on average in a quarter of an hour: an item of GET /resource/stats/user/month and /admin/month.
type UsageBin struct {
	Date     float64       `json:"date"` // seconds since 1970
	Sessions UsageQuantity `json:"num_sessions"`
	CPU      UsageQuantity `json:"cpu_allocated"`
	Mem      UsageQuantity `json:"mem_allocated"`
	GPU      UsageQuantity `json:"gpu_allocated"`
	IORead   UsageQuantity `json:"io_read_bytes"`
	IOWrite  UsageQuantity `json:"io_write_bytes"`
	Disk     UsageQuantity `json:"disk_used"`
}

// UsageQuantity is a number with its unit, count or bytes; what was not measured is null.
type UsageQuantity struct {
	Value *float64 `json:"value"`
	Unit  string   `json:"unit_hint"`
}
