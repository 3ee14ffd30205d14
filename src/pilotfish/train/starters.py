"""First words of invented prompts, written for this purpose: they spread the openings over kinds of tasks.

Left alone, a small assistant invents mostly requests for tips and plans. None of these comes from a benchmark.
"""

STARTERS = (
    # explaining
    "What is the difference between", "Explain in simple words why", "How does", "Why do", "What happens when",
    "Can you explain how", "What are the main causes of", "What are the advantages and disadvantages of",
    "Describe the history of", "Tell me something surprising about", "In one paragraph, explain", "Compare",
    "What does the word", "How is", "Give me an overview of", "What role does", "What are common myths about",
    # questions with short answers
    "Who was", "When did", "Where is", "Which country", "What is the name of", "How many", "What is the capital of",
    "Who invented", "Which is bigger,", "Is it true that", "In what year", "What language is spoken in",
    # reckoning and reasoning
    "A farmer has", "A train leaves", "If a shop sells", "Calculate", "Solve the equation", "Maria has",
    "There are three boxes:", "What is the next number in the sequence", "A rectangle has",
    "Tom is twice as old as", "Find the average of", "What percentage of", "Suppose that all", "A recipe needs",
    "If it takes", "A car travels", "Convert", "Two friends share", "The price of a coat",
    "Which of these weighs more:",
    # code
    "Write a Python function that", "Write a JavaScript function that", "What does this Python code do?\n\n```python\n",
    "How do I reverse", "Write an SQL query that", "Write a regular expression that", "Fix the bug in this code:\n\n",
    "Write a C++ program that", "Explain what a pointer", "Write a bash script that", "How do I sort",
    "Write a class in Java that", "What is recursion", "Write a unit test for", "Write HTML for",
    # writing
    "Write a short story about", "Write a poem about", "Write an email to", "Write a letter to", "Draft a speech about",
    "Write a product description for", "Write a blog post about", "Compose a song about", "Write a dialogue between",
    "Invent a legend about", "Write a review of", "Write a diary entry by", "Write the first chapter of",
    "Write a funny story in which", "Describe a morning in", "Write a news report about", "Write an advertisement for",
    # playing a part
    "Pretend you are", "You are a", "Imagine you are", "Act as", "Speak like a", "Let us play a game:",
    "I want you to be my", "Imagine that",
    # advice
    "How can I", "What should I", "Give me five tips for", "I feel", "Help me plan", "Suggest a name for",
    "What is a good way to", "My neighbour", "I want to learn", "How do I cook", "I have an interview for",
    "Recommend three books about", "My daughter is", "Is it a good idea to", "List ten ideas for",
    # working on a text that the prompt brings along
    "Summarize the following text:\n\n", "Summarize this article in two sentences:\n\n",
    "Here is a paragraph:\n\n", "Correct the grammar of this sentence:", "Rewrite this more politely:",
    "Translate to English:", "Translate this sentence into French:", "Translate from German to English:",
    "Translate into Spanish:", "Make this text shorter:\n\n", "What is the main idea of this passage?\n\n",
    "Find all names and places in this text:\n\n", "Answer the question using the passage below.\n\n",
    "Is the following review positive or negative?\n\n", "Give this text a title:\n\n",
    "Turn these notes into an email:\n\n",
    "List the key facts in this report:\n\n", "Read the text and answer the question.\n\nText:",
    "Extract the dates from this message:\n\n", "Continue this story:\n\n", "Put these words in alphabetical order:",
    # science, law, the arts
    "How do plants", "What is the chemical", "Explain the theory of", "How do vaccines", "What is photosynthesis",
    "Why is the sky", "Describe the structure of", "What is inflation", "How do elections", "What is the meaning of",
    "Discuss the influence of", "What can we learn from", "What is the function of", "How was",
    "Describe the culture of",
    "What is the philosophy of", "How do engineers", "Explain Newton's", "What is a black hole", "How do volcanoes",
)  # fmt: skip
