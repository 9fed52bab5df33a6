// Package nvmlhelper is the program berth-nvml: it asks NVIDIA's management library (NVML) about the GPUs of this host and
// answers the agent in the messages of package nvmlwire. It decides nothing and changes nothing on a card. What asks the
// library needs cgo; in a build without cgo every question is answered by words that say so. The agent starts the program
// by package nvmlclient and imports nothing of this one.
package nvmlhelper
