package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWhatIsShownAndListed(t *testing.T) {
	in := `{"Action":"output","Package":"p","Test":"TestA","Output":"=== RUN   TestA\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:7: no engine runs here\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"--- SKIP: TestA (0.00s)\n"}
{"Action":"skip","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestB","Output":"    b_test.go:9: wrong\n"}
{"Action":"fail","Package":"p","Test":"TestB"}
{"Action":"output","Package":"p","Test":"TestC","Output":"noise\n"}
{"Action":"pass","Package":"p","Test":"TestC"}
{"Action":"output","Package":"p","Output":"FAIL\tp\t0.1s\n"}
{"Action":"fail","Package":"p"}
{"Action":"skip","Package":"q"}
not json
`
	var out, list, failures strings.Builder
	failed, err := read(strings.NewReader(in), &out, &list, &failures)
	require.NoError(t, err)
	require.True(t, failed)
	require.Equal(t, "    b_test.go:9: wrong\nFAIL\tp\t0.1s\nnot json\n", out.String())
	require.Equal(t, "  p TestA: no engine runs here\n", list.String())
	require.Equal(t, "--- p TestB\n    b_test.go:9: wrong\n", failures.String())
	failures.Reset()
	failed, err = read(strings.NewReader(`{"Action":"build-fail","ImportPath":"p"}`), &out, &list, &failures)
	require.NoError(t, err)
	require.True(t, failed)
	require.Equal(t, "--- p does not compile\n", failures.String())
}

// TestATestThatDidNotEnd: when the time of a package is over, what its tests said that still ran is shown: the stacks are among it.
func TestATestThatDidNotEnd(t *testing.T) {
	in := `{"Action":"output","Package":"p","Test":"TestB","Output":"panic: test timed out\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"=== PAUSE TestA\n"}
{"Action":"output","Package":"q","Test":"TestC","Output":"goes on\n"}
{"Action":"output","Package":"p","Output":"FAIL\tp\t25m\n"}
{"Action":"fail","Package":"p"}
`
	var out, list, failures strings.Builder
	failed, err := read(strings.NewReader(in), &out, &list, &failures)
	require.NoError(t, err)
	require.True(t, failed)
	require.Equal(t, "FAIL\tp\t25m\n--- NOT ENDED: TestA\n=== PAUSE TestA\n--- NOT ENDED: TestB\npanic: test timed out\n", out.String())
	require.Equal(t, "--- p TestA did not end\n--- p TestB did not end\n", failures.String())
}

func TestTheLongestAreNamed(t *testing.T) {
	in := `{"Action":"pass","Package":"p","Test":"TestA","Elapsed":12.4}
{"Action":"pass","Package":"p","Test":"TestB/part","Elapsed":70}
{"Action":"fail","Package":"p","Test":"TestB","Elapsed":80}
{"Action":"pass","Package":"p","Test":"TestC","Elapsed":9.9}
{"Action":"pass","Package":"p","Elapsed":102}
`
	var out, list, failures strings.Builder
	_, err := read(strings.NewReader(in), &out, &list, &failures)
	require.NoError(t, err)
	require.Equal(t, "2 tests took 10 s or more; the longest:\n    80 s  p TestB\n    12 s  p TestA\n", out.String())
}

// TestWhatAFailedTestComplainsOf: the first thing that it required, with the ends of a long text, and nothing that is logged beside it.
func TestWhatAFailedTestComplainsOf(t *testing.T) {
	required := "    a_test.go:7: \n        Error Trace: a_test.go:7\n        Error: wrong\n"
	beside := "    b_test.go:9: log of a server\n        a line\n"
	require.Equal(t, required, complaint("=== RUN TestA\n    a_test.go:5: a step\n"+required+beside))
	require.Equal(t, "    a_test.go:7: wrong\n", complaint("=== RUN TestA\n    a_test.go:5: a step\n    a_test.go:7: wrong\n"))
	require.Empty(t, complaint("=== RUN TestA\n--- FAIL: TestA\n"))
	var long strings.Builder
	long.WriteString("    a_test.go:7: many\n")
	for i := range 40 {
		fmt.Fprintf(&long, "        line %d\n", i)
	}
	said := complaint(long.String())
	require.Contains(t, said, "a_test.go:7: many\n        line 0\n")
	require.Contains(t, said, "line 6\n        ...\n        line 28\n")
	require.True(t, strings.HasSuffix(said, "line 39\n"))
}
