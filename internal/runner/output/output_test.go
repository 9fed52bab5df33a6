package output_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"berth.dev/berth/internal/runner/output"
)

// TestReadersLoseNothing: whatever a producer writes and however a reader reads, repeats and
// acknowledges, it sees every byte once, in order, with the order of streams kept.
func TestReadersLoseNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		type piece struct{ typ, text string }
		pieces := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) piece {
			n := rapid.SampledFrom([]int{0, 1, 10, 3000, 40000, 100000}).Draw(t, "size")
			return piece{rapid.SampledFrom([]string{"stdout", "stderr", "media", "mark"}).Draw(t, "type"),
				strings.Repeat(rapid.SampledFrom([]string{"a", "é", "漢", "🎈"}).Draw(t, "char"), n)}
		}), 0, 30).Draw(t, "pieces")
		log := output.NewLog(output.Limits{Memory: int64(rapid.IntRange(0, 100_000).Draw(t, "memory")),
			Spill: int64(rapid.IntRange(0, 200_000).Draw(t, "spill")), SpillDir: dir}, output.Wait)
		defer log.Close()
		var want strings.Builder
		for _, p := range pieces {
			want.WriteString(p.typ[:1] + p.text)
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			for _, p := range pieces {
				switch p.typ {
				case "media":
					_ = log.Item(context.Background(), "media", "image/png", "m"+p.text)
				case "mark":
					log.Mark("mark", "m"+p.text)
				default:
					_ = log.Text(context.Background(), p.typ, p.typ[:1]+p.text)
				}
			}
			log.Mark("end", "")
		})
		defer wg.Wait()
		var got strings.Builder
		seq, ended := int64(0), false
		for !ended {
			log.Ack(seq)
			changed := log.Changed()
			b, err := log.Read(seq, rapid.SampledFrom([]int{1, 1000, 1 << 20}).Draw(t, "max"))
			require.NoError(t, err)
			if len(b.Records) == 0 {
				select {
				case <-changed:
				case <-time.After(time.Minute):
					t.Fatal("the log does not change")
				}
				continue
			}
			if rapid.Bool().Draw(t, "repeat") {
				again, err := log.Read(seq, 1)
				require.NoError(t, err)
				require.Equal(t, b.Records[0], again.Records[0], "a record that was handed out never changes")
			}
			for i, r := range b.Records {
				require.True(t, utf8.ValidString(r.Data))
				require.True(t, !r.Mark || i == len(b.Records)-1, "a mark ends a read")
				ended = ended || r.Type == "end"
				got.WriteString(r.Data)
			}
			require.Zero(t, b.Lost)
			require.Equal(t, seq+int64(len(b.Records)), b.Next)
			seq = b.Next
		}
		// The pieces begin with the first letter of their stream, so the order is compared, too.
		require.Equal(t, len(want.String()), len(got.String()))
		require.Equal(t, want.String() == got.String(), true)
	})
}

func TestBoundsAreTold(t *testing.T) {
	t.Parallel()
	log := output.NewLog(output.Limits{Memory: 1000, Spill: 0}, output.Wait)
	for range 10 {
		log.TextNow("stdout", strings.Repeat("x", 30_000))
	}
	b, err := log.Read(0, 1<<20)
	require.NoError(t, err)
	require.EqualValues(t, 300_000, b.Lost+int64(b.Bytes))
	require.Positive(t, b.Lost)
	require.True(t, log.Full())

	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	require.ErrorIs(t, log.Text(ctx, "stdout", strings.Repeat("x", 30_000)), context.Canceled)
	log.Loosen()
	require.NoError(t, log.Text(context.Background(), "stdout", strings.Repeat("x", 30_000)), "loosened: nobody waits")
	_, err = log.Read(99, 1)
	require.Error(t, err)
	log.Close()
	require.ErrorIs(t, log.Text(context.Background(), "stdout", "x"), output.ErrClosed)
}

func TestDropOldest(t *testing.T) {
	t.Parallel()
	log := output.NewLog(output.Limits{Memory: 100_000}, output.DropOldest)
	for i := range 100 {
		require.NoError(t, log.Text(context.Background(), "stdout", strings.Repeat(string(rune('a'+i%26)), 32<<10)))
	}
	b, err := log.Read(0, 1<<20)
	require.NoError(t, err)
	require.Less(t, b.Bytes, 100_001)
	require.EqualValues(t, 100*32<<10, int64(b.Bytes)+b.Lost)
	require.Equal(t, byte('a'+99%26), b.Records[len(b.Records)-1].Data[0])
}

func TestDecoder(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		in := rapid.SliceOf(rapid.Byte()).Draw(t, "bytes")
		if rapid.Bool().Draw(t, "text") {
			in = []byte(rapid.String().Draw(t, "string"))
		}
		var d output.Decoder
		var got strings.Builder
		for rest := in; len(rest) > 0; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "chunk")
			part := d.Decode(rest[:n])
			require.True(t, utf8.ValidString(part))
			got.WriteString(part)
			rest = rest[n:]
		}
		got.WriteString(d.Flush())
		if utf8.Valid(in) {
			require.Equal(t, string(in), got.String())
		}
	})
}

func TestStripANSI(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"plain": "plain", "\x1b[0;31mred\x1b[0m!": "red!", "\x1b]0;title\aafter": "after", "\x1b]8;;u\x1b\\link": "link", "\x1b": "", "\x1b[": "",
		"a\x1b(Bb": "aBb",
	} {
		require.Equal(t, want, output.StripANSI(in))
	}
}
