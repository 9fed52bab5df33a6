// Package external reads the history of use from a Prometheus of the operator's, which scrapes the managers (metric.Exporter). It asks
// for ranges of steps as package metric has them and decides nothing: who may see what was decided before.
package external

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/metric"
)

const (
	// perQuery is how many kernels or agents one query names.
	perQuery = 200
	// maxAnswer bounds an answer: 200 of them with 40 measurements and 1,500 steps take about this.
	maxAnswer = 256 << 20
	// maxProblem is how much of a refusal is read.
	maxProblem = 4 << 10
	// rateWindow is the shortest span that rates of counters are taken over: two readings have to lie in it.
	rateWindow = 2 * time.Minute
	// patience bounds one query, patienceAll all of a request.
	patience, patienceAll = 15 * time.Second, time.Minute
	maxToken              = 64 << 10
)

// Reader asks a Prometheus. It may be used concurrently.
type Reader struct {
	address   string
	tokenFile string
	client    *http.Client
	log       *slog.Logger
}

// New makes a reader of what the configuration names; nil where it names nothing.
func New(c metric.PrometheusConfig, log *slog.Logger) *Reader {
	if c.URL == "" {
		return nil
	}
	// A redirect could take the token elsewhere.
	client := &http.Client{Timeout: patience, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return &Reader{address: strings.TrimSuffix(c.URL, "/") + "/api/v1/query_range", tokenFile: c.TokenFile, client: client, log: log}
}

// kinds are how the series of kernels and agents are called and told apart.
var kinds = map[metric.Kind]struct{ series, id, name, more string }{
	metric.OfKernels: {metric.KernelSeries, "kernel_id", "container_metric_name", `,value_type="current"`},
	metric.OfAgents:  {metric.AgentSeries, "agent_id", "metric_name", ""},
}

// queries are those for what is measured at moments, and for what is counted. More than one manager may tell of the same kernel within a
// few minutes, and more than one Prometheus may stand behind an address: one of them counts.
func queries(of metric.Kind, ids []string, step time.Duration) [2]string {
	k := kinds[of]
	quoted := make([]string, len(ids))
	for i, id := range ids {
		quoted[i] = regexp.QuoteMeta(id)
	}
	query := func(function, names string, window time.Duration) string {
		return fmt.Sprintf(`max by (%[1]s, %[2]s) (%[3]s(%[4]s{%[1]s=~%[5]s,%[2]s=~%[6]s%[7]s}[%[8]ds]))`, k.id, k.name, function, k.series,
			strconv.Quote(strings.Join(quoted, "|")), strconv.Quote(names), k.more, int(window/time.Second))
	}
	return [2]string{
		query("avg_over_time", "cpu_util|mem|.+_(util|mem|power|temperature)", step),
		query("rate", "io_read|io_write|net_rx|net_tx", max(step, rateWindow)),
	}
}

// Points reads the points of some, by their ids, or of all added up, by "". Steps of which nothing is known are left out.
func (r *Reader) Points(ctx context.Context, of metric.Kind, ids []string, span metric.Range, sum bool) (map[string][]metric.Point, error) {
	ctx, cancel := context.WithTimeout(ctx, patienceAll)
	defer cancel()
	all := map[string]map[int64]*metric.Point{}
	for some := range slices.Chunk(ids, perQuery) {
		for _, q := range queries(of, some, span.Step) {
			found, err := r.ask(ctx, q, span)
			if err != nil {
				return nil, err
			}
			for _, s := range found {
				id := s.Labels[kinds[of].id]
				if !slices.Contains(some, id) {
					continue
				}
				if sum {
					id = ""
				}
				add(all, id, s.Labels[kinds[of].name], s.Values, span)
			}
		}
	}
	out := map[string][]metric.Point{}
	for id, points := range all {
		for _, p := range points {
			out[id] = append(out[id], *p)
		}
		slices.SortFunc(out[id], func(a, b metric.Point) int { return a.At.Compare(b.At) })
	}
	return out, nil
}

// add adds the values of one series to the points of an id. A value is told at the end of its step.
func add(all map[string]map[int64]*metric.Point, id, name string, values []sample, span metric.Range) {
	for _, v := range values {
		at := v.at.Add(-span.Step)
		if at.Before(span.From) || !at.Before(span.Until) {
			continue
		}
		if all[id] == nil {
			all[id] = map[int64]*metric.Point{}
		}
		p := all[id][at.Unix()]
		if p == nil {
			p = &metric.Point{At: at}
			all[id][at.Unix()] = p
		}
		p.Add(name, v.value)
	}
}

// series is one of an answer.
type series struct {
	Labels map[string]string `json:"metric"`
	Values []sample          `json:"values"`
}

// sample is a time in seconds and a number as text. What is no number was not measured.
type sample struct {
	at    time.Time
	value float64
}

// UnmarshalJSON reads [1435781430.781, "1"].
func (s *sample) UnmarshalJSON(raw []byte) error {
	var pair [2]any
	if err := json.Unmarshal(raw, &pair); err != nil {
		return err
	}
	at, isNumber := pair[0].(float64)
	text, isText := pair[1].(string)
	if !isNumber || !isText || math.Abs(at) > 1e11 {
		return fmt.Errorf("%.60s is no sample", raw)
	}
	v, err := strconv.ParseFloat(text, 64)
	if err != nil {
		v = math.NaN()
	}
	*s = sample{time.Unix(int64(math.Round(at)), 0).UTC(), v}
	return nil
}

// ask asks for a range. Every way in which it can fail is Unavailable: the page says so, and shows what it has.
func (r *Reader) ask(ctx context.Context, query string, span metric.Range) ([]series, error) {
	steps := int64((span.Until.Sub(span.From) + span.Step - 1) / span.Step)
	seconds := int64(span.Step / time.Second)
	form := url.Values{"query": {query}, "start": {strconv.FormatInt(span.From.Unix()+seconds, 10)},
		"end": {strconv.FormatInt(span.From.Unix()+steps*seconds, 10)}, "step": {strconv.FormatInt(seconds, 10)}}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.address, strings.NewReader(form.Encode()))
	if err != nil {
		return nil, r.away(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	if token, err := r.token(); err != nil {
		return nil, r.away(err)
	} else if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := r.client.Do(req)
	if err != nil {
		return nil, r.away(err)
	}
	defer res.Body.Close() //nolint:errcheck // it is only read
	if res.StatusCode != http.StatusOK {
		said, _ := io.ReadAll(io.LimitReader(res.Body, maxProblem))
		return nil, r.away(fmt.Errorf("%s: %s", res.Status, strings.TrimSpace(string(said))))
	}
	var answer struct {
		Status string `json:"status"`
		Error  string `json:"error"`
		Data   struct {
			Type   string   `json:"resultType"`
			Result []series `json:"result"`
		} `json:"data"`
	}
	body := &io.LimitedReader{R: res.Body, N: maxAnswer}
	if err := json.NewDecoder(body).Decode(&answer); err != nil {
		if body.N <= 0 {
			err = fmt.Errorf("the answer is longer than %d MiB", maxAnswer>>20)
		}
		return nil, r.away(fmt.Errorf("read the answer: %w", err))
	}
	if answer.Status != "success" || answer.Data.Type != "matrix" {
		return nil, r.away(fmt.Errorf("it answered %q (%s) instead of a matrix", answer.Status, answer.Error))
	}
	return answer.Data.Result, nil
}

// token reads the file anew each time: others write new ones before they expire.
func (r *Reader) token() (string, error) {
	if r.tokenFile == "" {
		return "", nil
	}
	f, err := os.Open(r.tokenFile)
	if err != nil {
		return "", fmt.Errorf("read the token: %w", err)
	}
	defer f.Close() //nolint:errcheck // it is only read
	raw, err := io.ReadAll(io.LimitReader(f, maxToken))
	if err != nil {
		return "", fmt.Errorf("read the token: %w", err)
	}
	token := strings.TrimSpace(string(raw))
	if token == "" || strings.ContainsFunc(token, func(c rune) bool { return c <= ' ' || c > '~' }) {
		return "", fmt.Errorf("the token file %s holds no token", r.tokenFile)
	}
	return token, nil
}

// away logs what happened, which may hold addresses, and says less to who asked.
func (r *Reader) away(err error) error {
	r.log.Warn("the history of use cannot be read from Prometheus", "error", err)
	return fault.Unavailablef("the history of use cannot be read: Prometheus does not answer as it should").
		WithNext("try again; administrators find the reason in the log of the manager")
}
