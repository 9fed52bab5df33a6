package packing

import "testing"

// BenchmarkScore is the price of one node and one request: remembered, as it mostly is, and for a
// state never seen before, as after every change of a node.
func BenchmarkScore(b *testing.B) {
	p, err := New(typical(), Options{})
	if err != nil {
		b.Fatal(err)
	}
	nodes, _ := trace(0)
	p.Survey(func(yield func(*Node) bool) {
		for i := range nodes {
			if !yield(&nodes[i]) {
				return
			}
		}
	})
	n := Node{CPU: 61000, Mem: 262144, GPUs: []int32{190, Whole, 530, Whole, 190, 0, Whole, 680}}
	r := Request{CPU: 4000, Mem: 15000, GPUs: 1, Milli: 160}
	b.Run("remembered", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			p.Score(&n, &r)
		}
	})
	b.Run("new", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			n.Mem = 262144 + int64(i)
			p.Score(&n, &r)
		}
	})
	b.Run("new-almost-full", func(b *testing.B) {
		b.ReportAllocs()
		full := Node{CPU: 21000, GPUs: []int32{0, 0, 0, 190, 0, 0, 530, 0}}
		for i := 0; b.Loop(); i++ {
			full.Mem = 62144 + int64(i)
			p.Score(&full, &r)
		}
	})
}

func BenchmarkSurvey(b *testing.B) {
	p, err := New(typical(), Options{})
	if err != nil {
		b.Fatal(err)
	}
	nodes, _ := trace(0)
	b.ReportAllocs()
	for b.Loop() {
		p.Survey(func(yield func(*Node) bool) {
			for i := range 5000 {
				if !yield(&nodes[i%len(nodes)]) {
					return
				}
			}
		})
	}
}
