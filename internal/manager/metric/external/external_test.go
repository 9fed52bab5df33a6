package external_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/metric"
	"berth.dev/berth/internal/manager/metric/external"
)

const (
	one = "00000000-0000-4000-8000-000000000001"
	two = "00000000-0000-4000-8000-000000000002"
)

var (
	began = time.Date(2026, 3, 4, 10, 0, 0, 0, time.UTC)
	span  = metric.Range{From: began, Until: began.Add(4*time.Minute + 30*time.Second), Step: time.Minute}
)

// server is a Prometheus: what answer makes of each request.
type server struct {
	*httptest.Server
	mu    sync.Mutex
	asked []url.Values
	auth  []string
}

func serve(t *testing.T, answer func(w http.ResponseWriter, q url.Values)) *server {
	t.Helper()
	s := &server{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/prom/api/v1/query_range" || r.Method != http.MethodPost || r.ParseForm() != nil {
			http.Error(w, "not found", http.StatusNotFound)
			return
		}
		s.mu.Lock()
		s.asked, s.auth = append(s.asked, r.PostForm), append(s.auth, r.Header.Get("Authorization"))
		s.mu.Unlock()
		answer(w, r.PostForm)
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *server) reader(c metric.PrometheusConfig) *external.Reader {
	c.URL = s.URL + "/prom/"
	return external.New(c, slog.New(slog.DiscardHandler))
}

// matrix answers with series: labels, then values as Prometheus writes them, at the steps from the first on.
func matrix(w http.ResponseWriter, series ...map[string][]string) {
	type one struct {
		Metric map[string]string `json:"metric"`
		Values [][2]any          `json:"values"`
	}
	all := []one{}
	for _, s := range series {
		for labels, values := range s {
			o := one{Metric: map[string]string{}}
			for part := range strings.SplitSeq(labels, ",") {
				k, v, _ := strings.Cut(part, "=")
				o.Metric[k] = v
			}
			for i, v := range values {
				if v != "" {
					o.Values = append(o.Values, [2]any{began.Unix() + int64(i+1)*60, v})
				}
			}
			all = append(all, o)
		}
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"status": "success", "data": map[string]any{"resultType": "matrix", "result": all}})
}

func labels(id, name string) string { return "kernel_id=" + id + ",container_metric_name=" + name }

func TestPointsOfEachAndOfAllTogether(t *testing.T) {
	t.Parallel()
	s := serve(t, func(w http.ResponseWriter, q url.Values) {
		if strings.Contains(q.Get("query"), "rate(") {
			matrix(w, map[string][]string{labels(one, "net_rx"): {"1", "2"}, labels(two, "net_rx"): {"10"}})
			return
		}
		matrix(w, map[string][]string{
			labels(one, "cpu_util"):  {"50", "NaN", "+Inf", "-1", "60", "70"}, // the sixth is beyond the range
			labels(two, "cpu_util"):  {"25", "", "100"},
			labels(one, "mem"):       {"1024"},
			labels(one, "cuda_util"): {"", "80"},
			labels(one, "oom_kills"): {"3"}, // history keeps none
			labels("00000000-0000-4000-8000-00000000dead", "cpu_util"): {"99"}, // nobody asked for it
		})
	})
	r := s.reader(metric.PrometheusConfig{})
	points, err := r.Points(t.Context(), metric.OfKernels, []string{one, two}, span, false)
	require.NoError(t, err)
	minute := func(n int, add func(*metric.Point)) metric.Point {
		p := metric.Point{At: began.Add(time.Duration(n) * time.Minute)}
		add(&p)
		return p
	}
	require.Equal(t, map[string][]metric.Point{
		one: {
			minute(0, func(p *metric.Point) { p.CPU, p.Mem, p.NetRx = new(50.0), new(1024.0), new(1.0) }),
			minute(1, func(p *metric.Point) { p.NetRx, p.Devices = new(2.0), map[string]float64{"cuda_util": 80} }),
			minute(2, func(*metric.Point) {}), minute(3, func(*metric.Point) {}),
			minute(4, func(p *metric.Point) { p.CPU = new(60.0) }),
		},
		two: {
			minute(0, func(p *metric.Point) { p.CPU, p.NetRx = new(25.0), new(10.0) }),
			minute(2, func(p *metric.Point) { p.CPU = new(100.0) }),
		},
	}, points)
	together, err := r.Points(t.Context(), metric.OfKernels, []string{one, two}, span, true)
	require.NoError(t, err)
	require.Equal(t, minute(0, func(p *metric.Point) { p.CPU, p.Mem, p.NetRx = new(75.0), new(1024.0), new(11.0) }), together[""][0])

	require.Len(t, s.asked, 4)
	q := s.asked[0]
	require.Equal(t, []string{strconv.FormatInt(began.Unix()+60, 10), strconv.FormatInt(began.Unix()+5*60, 10), "60"},
		[]string{q.Get("start"), q.Get("end"), q.Get("step")}, "each step is told at its end, the one that runs too")
	require.Contains(t, q.Get("query"), `avg_over_time(backendai_container_utilization{kernel_id=~"`+one+"|"+two+`",`)
	require.Contains(t, q.Get("query"), `[60s]`)
	require.Contains(t, s.asked[1].Get("query"), `[120s]`, "two readings lie in it")
}

// What an agent is called ends no text of a query, and matches itself alone.
func TestHostileNamesOfAgents(t *testing.T) {
	t.Parallel()
	hostile := "a\"}) or vector(1) # .*\\\n"
	s := serve(t, func(w http.ResponseWriter, _ url.Values) {
		matrix(w, map[string][]string{"agent_id=other,metric_name=cpu_util": {"1"}})
	})
	points, err := s.reader(metric.PrometheusConfig{}).Points(t.Context(), metric.OfAgents, []string{hostile}, span, false)
	require.NoError(t, err)
	require.Empty(t, points)
	query := s.asked[0].Get("query")
	inside := regexp.MustCompile(`berth_agent_utilization\{agent_id=~("(?:[^"\\]|\\.)*"),metric_name`).FindStringSubmatch(query)
	require.Len(t, inside, 2, query)
	pattern, err := strconv.Unquote(inside[1])
	require.NoError(t, err)
	require.Regexp(t, regexp.MustCompile(`^(?:`+pattern+`)$`), hostile)
	require.NotRegexp(t, regexp.MustCompile(`^(?:`+pattern+`)$`), "another")
}

func TestManyAreAskedInParts(t *testing.T) {
	t.Parallel()
	ids := make([]string, 450)
	for i := range ids {
		ids[i] = fmt.Sprintf("00000000-0000-4000-8000-%012d", i)
	}
	s := serve(t, func(w http.ResponseWriter, q url.Values) {
		if strings.Contains(q.Get("query"), "rate(") {
			matrix(w)
			return
		}
		all := map[string][]string{}
		for _, id := range ids {
			if strings.Contains(q.Get("query"), id) {
				all[labels(id, "cpu_util")] = []string{"1"}
			}
		}
		matrix(w, all)
	})
	points, err := s.reader(metric.PrometheusConfig{}).Points(t.Context(), metric.OfKernels, ids, span, true)
	require.NoError(t, err)
	require.Equal(t, new(450.0), points[""][0].CPU)
	require.Len(t, s.asked, 6)
}

// Whatever is wrong with it, the answer is that it cannot be read, with nothing of the operator's inside; a redirect is not followed.
func TestAPrometheusThatIsNotWell(t *testing.T) {
	t.Parallel()
	elsewhere := serve(t, func(http.ResponseWriter, url.Values) { t.Error("a redirect was followed") })
	for name, answer := range map[string]func(w http.ResponseWriter, q url.Values){
		"refuses": func(w http.ResponseWriter, _ url.Values) {
			w.WriteHeader(http.StatusBadRequest)
			_, _ = w.Write([]byte(`{"status":"error","error":"secret-inside"}`))
		},
		"no JSON": func(w http.ResponseWriter, _ url.Values) { _, _ = w.Write([]byte("<html>")) },
		"a vector": func(w http.ResponseWriter, _ url.Values) {
			_, _ = w.Write([]byte(`{"status":"success","data":{"resultType":"vector"}}`))
		},
		"odd values": func(w http.ResponseWriter, _ url.Values) {
			_, _ = w.Write([]byte(`{"status":"success","data":{"resultType":"matrix","result":[{"metric":{},"values":[["x",1]]}]}}`))
		},
		"redirects": func(w http.ResponseWriter, _ url.Values) {
			w.Header().Set("Location", elsewhere.URL+"/prom/api/v1/query_range")
			w.WriteHeader(http.StatusTemporaryRedirect)
		},
		"breaks off": func(http.ResponseWriter, url.Values) { panic(http.ErrAbortHandler) },
	} {
		_, err := serve(t, answer).reader(metric.PrometheusConfig{}).Points(t.Context(), metric.OfKernels, []string{one}, span, false)
		require.True(t, fault.Is(err, fault.Unavailable), "%s: %v", name, err)
		require.NotContains(t, err.Error(), "secret-inside", name)
		require.NotContains(t, err.Error(), "127.0.0.1", name)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := serve(t, nil).reader(metric.PrometheusConfig{}).Points(ctx, metric.OfKernels, []string{one}, span, false)
	require.True(t, fault.Is(err, fault.Unavailable), "%v", err)
}

func TestTheTokenIsReadEachTime(t *testing.T) {
	t.Parallel()
	s := serve(t, func(w http.ResponseWriter, _ url.Values) { matrix(w) })
	file := filepath.Join(t.TempDir(), "token")
	r := s.reader(metric.PrometheusConfig{TokenFile: file})
	ask := func() error {
		_, err := r.Points(t.Context(), metric.OfKernels, []string{one}, span, false)
		return err
	}
	require.True(t, fault.Is(ask(), fault.Unavailable), "there is no file")
	require.Empty(t, s.auth)
	require.NoError(t, os.WriteFile(file, []byte("first\n"), 0o600))
	require.NoError(t, ask())
	require.Equal(t, "Bearer first", s.auth[0])
	require.NoError(t, os.WriteFile(file, []byte("second"), 0o600))
	require.NoError(t, ask())
	require.Equal(t, "Bearer second", s.auth[len(s.auth)-1])
	require.NoError(t, os.WriteFile(file, []byte("a\nb: c"), 0o600))
	require.True(t, fault.Is(ask(), fault.Unavailable), "that would be a header of its own")
}

func TestNoAddressIsNoReader(t *testing.T) {
	t.Parallel()
	require.Nil(t, external.New(metric.PrometheusConfig{}, nil))
}
