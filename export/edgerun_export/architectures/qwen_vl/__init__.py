"""Text models of Qwen2-VL, Qwen2.5-VL and Qwen3-VL, beside one part for pictures and videos."""
